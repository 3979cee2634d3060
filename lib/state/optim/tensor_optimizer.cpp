#include "state/optim/tensor_optimizer.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/linalg_vector_norm.h>

#include <algorithm>

#include "base/util/error.h"
#include "model/kernels/fused.h"
#include "model/kernels/reduce.h"

namespace fsdp::optim {

TensorOptimizer::TensorOptimizer(const OptimizerOptions& options, std::vector<FlatParameter> parameters,
                                 WholeMatrices* matrices)
    : Optimizer(options, std::move(parameters)), matrices_(matrices) {
  FSDP_CHECK(matrices_ != nullptr, options.name, " without a way to sums over whole tensors");
  require(options.state_dtype == StateType::kFloat32, "optimizer.state_dtype = \"", options.state_dtype,
          "\" is for optimizers that update elements or matrices, not for ", options.name,
          "; leave it out, or set optimizer.name to adamw or another");
  FSDP_CHECK(!updates_alone(), options.name, " needs sums over whole tensors");
}

at::Tensor TensorOptimizer::part_of(const at::Tensor& flat, const FlatParameter::Tensor& tensor) {
  return flat.narrow(0, tensor.begin, tensor.numel());
}

std::vector<double> TensorOptimizer::sums_of_squares(const std::vector<at::Tensor>& tensors) {
  if (std::all_of(tensors.begin(), tensors.end(), kernels::can_fuse))
    return kernels::sums_of_squares(tensors);
  std::vector<double> sums;
  for (const at::Tensor& tensor : tensors) {
    double& sum = sums.emplace_back(0);
    // A 16-bit tensor is converted in pieces, whose copies are small.
    const int64_t most = tensor.scalar_type() == at::kFloat ? tensor.numel() : kPiece;
    for (int64_t begin = 0; begin < tensor.numel(); begin += most) {
      const at::Tensor piece = tensor.narrow(0, begin, std::min(most, tensor.numel() - begin)).to(at::kFloat);
      const double norm = at::linalg_vector_norm(piece, 2, std::nullopt, false, at::kDouble).item<double>();
      sum += norm * norm;
    }
  }
  return sums;
}

void TensorOptimizer::add_up(size_t i, std::vector<double>& sums) const {
  matrices_->add_up(i, at::from_blob(sums.data(), {static_cast<int64_t>(sums.size())}, at::kDouble));
}

void TensorOptimizer::update(const Update&) {
  FSDP_CHECK(false, "an optimizer of whole tensors has no update of elements");
}

}  // namespace fsdp::optim
