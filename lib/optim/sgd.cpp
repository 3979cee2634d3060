#include "optim/sgd.h"

#include <ATen/Functions.h>

#include "util/error.h"

namespace fsdp::optim {

Sgd::Sgd(const OptimizerOptions& options, std::vector<FlatParameter> parameters)
    : Optimizer(
          std::move(parameters),
          options.momentum != 0 ? std::vector<std::string>{"momentum_buffer"} : std::vector<std::string>{},
          options.weight_decay),
      momentum_(options.momentum),
      fused_(options.fused) {
  if (!(momentum_ >= 0 && momentum_ < 1)) {
    util::fail(util::ErrorKind::kUsage, "optimizer.momentum = ", momentum_,
               " must be a number of at least 0 and below 1; correct the config");
  }
}

void Sgd::update(const Update& update) {
  if (fused_) {
    update_fused(update);
  } else {
    update_composed(update);
  }
}

void Sgd::update_fused(const Update& update) {
  // PyTorch sets the buffer to the first gradient; a buffer of zeros without dampening comes to the same, so
  // the first step is no special case, after resuming neither.
  std::vector<at::Tensor> buffers;
  if (momentum_ != 0) buffers = update.states[0];
  at::_fused_sgd_(update.values, update.gradients, buffers, update.weight_decay, momentum_, update.lr,
                  /*dampening=*/0, /*nesterov=*/false, /*maximize=*/false, /*is_first_step=*/false);
}

// The order of torch.optim.sgd's _single_tensor_sgd.
void Sgd::update_composed(const Update& update) {
  for (size_t k = 0; k < update.values.size(); ++k) {
    const at::Tensor& value = update.values[k];
    at::Tensor gradient = update.gradients[k];
    if (update.weight_decay != 0) gradient = gradient.add(value, update.weight_decay);
    if (momentum_ != 0) {
      gradient = update.states[0][k].mul_(momentum_).add_(gradient);
    }
    value.add_(gradient, -update.lr);
  }
}

}  // namespace fsdp::optim
