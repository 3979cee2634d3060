#include "optim/sgd.h"

#include <ATen/Functions.h>

#include "util/error.h"

namespace fsdp::optim {

Sgd::Sgd(const OptimizerOptions& options, std::vector<FlatParameter> parameters)
    : Optimizer(options, std::move(parameters)),
      momentum_(options.momentum),
      dampening_(options.dampening),
      nesterov_(options.nesterov),
      fused_(options.fused) {
  if (!(momentum_ >= 0 && momentum_ < 1)) {
    util::fail(util::ErrorKind::kUsage, "optimizer.momentum = ", momentum_,
               " must be a number of at least 0 and below 1; correct the config");
  }
  if (!(dampening_ >= 0 && dampening_ <= 1)) {
    util::fail(util::ErrorKind::kUsage, "optimizer.dampening = ", dampening_,
               " must be a number from 0 to 1; correct the config");
  }
  if (dampening_ != 0 && momentum_ == 0) {
    util::fail(util::ErrorKind::kUsage, "optimizer.dampening = ", dampening_,
               " needs optimizer.momentum above 0; leave it out or set the momentum");
  }
  if (nesterov_ && (momentum_ == 0 || dampening_ != 0)) {
    util::fail(
        util::ErrorKind::kUsage,
        "optimizer.nesterov = true needs optimizer.momentum above 0 and optimizer.dampening = 0; found ",
        momentum_, " and ", dampening_, "; leave it out or change these");
  }
}

/// PyTorch sets the buffer to the first gradient. Without dampening a buffer of zeros comes to the same, so
/// that the first step is no special case, and neither is one after the buffers were restored.
bool Sgd::fills_buffers(const Update& update) const { return dampening_ != 0 && update.step == 1; }

void Sgd::update(const Update& update) {
  if (fused_) {
    update_fused(update);
  } else {
    update_composed(update);
  }
}

void Sgd::update_fused(const Update& update) {
  std::vector<at::Tensor> buffers;
  if (momentum_ != 0) buffers = update.states[0];
  at::_fused_sgd_(update.values, update.gradients, buffers, update.weight_decay, momentum_, update.lr,
                  dampening_, nesterov_, /*maximize=*/false, fills_buffers(update));
}

// The order of torch.optim.sgd's _single_tensor_sgd.
void Sgd::update_composed(const Update& update) {
  for (size_t k = 0; k < update.values.size(); ++k) {
    const at::Tensor& value = update.values[k];
    at::Tensor gradient = update.gradients[k];
    if (update.weight_decay != 0) gradient = gradient.add(value, update.weight_decay);
    if (momentum_ != 0) {
      const at::Tensor& buffer = update.states[0][k];
      if (fills_buffers(update)) {
        buffer.copy_(gradient);
      } else {
        buffer.mul_(momentum_).add_(gradient, 1 - dampening_);
      }
      gradient = nesterov_ ? gradient.add(buffer, momentum_) : buffer;
    }
    value.add_(gradient, -update.lr);
  }
}

}  // namespace fsdp::optim
