// Replaces cuda/*.cu in programs built without CUDA.

#include "base/util/error.h"
#include "model/kernels/cuda/kernels.h"
#include "model/kernels/cuda/products.h"

namespace fsdp::kernels::cuda {

const RowKernels* row_kernels(Element) { return nullptr; }

void embedding_backward(Element, const EmbeddingGradRows&) { FSDP_CHECK(false, "built without CUDA"); }

void dropout(Element, const DropoutRows&) { FSDP_CHECK(false, "built without CUDA"); }

void join_rotary(Element, const JoinedGradients&) { FSDP_CHECK(false, "built without CUDA"); }

void join_rows(Element, const JoinedGradients&, float*, const RowParts&) {
  FSDP_CHECK(false, "built without CUDA");
}

void adam(Element, const AdamStep&) { FSDP_CHECK(false, "built without CUDA"); }

void decide_outcome(const OutcomeDecision&) { FSDP_CHECK(false, "built without CUDA"); }

void round_to_float8(const Float8Rounding&) { FSDP_CHECK(false, "built without CUDA"); }

bool multiply_by_choice(ProductChoices&, const GpuProduct&, const std::function<void()>&) { return false; }

bool multiply_as_proposed(const GpuProduct&) { return false; }

std::string product_library(const at::Device&) { FSDP_CHECK(false, "built without CUDA"); }

}  // namespace fsdp::kernels::cuda
