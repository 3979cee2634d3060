#include "kernels/cuda/dropout.cuh"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/embedding.cuh"
#include "kernels/cuda/float8.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/stream_launch.cuh"

namespace fsdp::kernels::cuda {
namespace {

template <typename T>
RowKernels made() {
  RowKernels table{};
  put_norms<T>(table);
  put_activations<T>(table);
  put_losses<T>(table);
  return table;
}

}  // namespace

const RowKernels* row_kernels(Element element) {
  static const RowKernels of_float = made<float>(), of_bfloat16 = made<c10::BFloat16>();
  return element == Element::kFloat ? &of_float : &of_bfloat16;
}

void embedding_backward(Element element, const EmbeddingGradRows& rows) {
  element == Element::kFloat ? embedding_backward<float>(StreamLaunch(), rows)
                             : embedding_backward<c10::BFloat16>(StreamLaunch(), rows);
}

void dropout(Element element, const DropoutRows& rows) {
  element == Element::kFloat ? dropout<float>(StreamLaunch(), rows)
                             : dropout<c10::BFloat16>(StreamLaunch(), rows);
}

void adam(Element gradient, const AdamStep& step) {
  gradient == Element::kFloat ? adam<float>(StreamLaunch(), step) : adam<c10::BFloat16>(StreamLaunch(), step);
}

void decide_outcome(const OutcomeDecision& decision) { decide_outcome(StreamLaunch(), decision); }

void round_to_float8(const Float8Rounding& matrix) { round_to_float8(StreamLaunch(), matrix); }

}  // namespace fsdp::kernels::cuda
