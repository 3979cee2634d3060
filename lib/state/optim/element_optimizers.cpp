#include "state/optim/element_optimizers.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <cmath>
#include <tuple>
#include <utility>

#include "model/kernels/adam.h"
#include "state/optim/element_loop.h"

namespace fsdp::optim {

namespace {

struct LionLoop {
  float keep, lr, beta1, one_minus_beta1, beta2, one_minus_beta2;

  void operator()(int64_t n, float* __restrict value, const float* __restrict gradient,
                  float* __restrict exp_avg, float*) const {
    for (int64_t i = 0; i < n; ++i) {
      const float direction = beta1 * exp_avg[i] + one_minus_beta1 * gradient[i];
      const float sign = static_cast<float>(direction > 0) - static_cast<float>(direction < 0);
      value[i] = keep * value[i] - lr * sign;
      exp_avg[i] = beta2 * exp_avg[i] + one_minus_beta2 * gradient[i];
    }
  }
};

}  // namespace

Adam::Adam(const OptimizerOptions& options, Decay decay, std::vector<FlatParameter> parameters)
    : Optimizer(options, std::move(parameters)), decay_(decay), eps_(checked_eps(options)) {
  std::tie(beta1_, beta2_) = checked_betas(options);
}

bool Adam::updates_in_one_pass(const at::Tensor& value) const {
  return options().fused && value.scalar_type() == at::kFloat;
}

void Adam::update(const Update& update) {
  options().fused ? update_together(update) : update_composed(update);
}

void Adam::update_together(c10::ArrayRef<Update> updates) {
  const bool decoupled = decay_ == Decay::kDecoupled;
  const kernels::AdamNumbers numbers{.gradient_scale = static_cast<float>(updates.front().gradient_scale),
                                     .beta1 = static_cast<float>(beta1_),
                                     .one_minus_beta1 = static_cast<float>(1 - beta1_),
                                     .beta2 = static_cast<float>(beta2_),
                                     .one_minus_beta2 = static_cast<float>(1 - beta2_),
                                     .eps = static_cast<float>(eps_)};
  std::vector<kernels::AdamTensors> parts;
  for (const Update& update : updates) {
    const auto step = static_cast<double>(update.step);
    const kernels::AdamRates rates{
        .keep = static_cast<float>(decoupled ? 1 - update.lr * update.weight_decay : 1),
        .decay = static_cast<float>(decoupled ? 0 : update.weight_decay),
        .step_size = static_cast<float>(update.lr / (1 - std::pow(beta1_, step))),
        .second_correction = static_cast<float>(std::sqrt(1 - std::pow(beta2_, step)))};
    for (size_t k = 0; k < update.values.size(); ++k) {
      parts.push_back({.value = update.values[k],
                       .gradient = update.gradients[k],
                       .exp_avg = update.states[0][k],
                       .exp_avg_sq = update.states[1][k],
                       .copy = update.copies.empty() ? at::Tensor() : update.copies[k],
                       .rates = rates});
      if (!update.rounded.empty()) parts.back().rounded = {update.rounded[0][k], update.rounded[1][k]};
      if (update.coded.empty()) continue;
      parts.back().scales = {update.coded[0][k].scales, update.coded[1][k].scales};
      parts.back().phase = update.coded[0][k].phase;
    }
  }
  kernels::step_adam(parts, numbers, updates.front().scale_on_device);
}

// The order of torch.optim.adam's _single_tensor_adam.
void Adam::update_composed(const Update& update) {
  auto step = static_cast<double>(update.step);
  double step_size = update.lr / (1 - std::pow(beta1_, step));
  double second_correction = std::sqrt(1 - std::pow(beta2_, step));
  for (size_t k = 0; k < update.values.size(); ++k) {
    const at::Tensor& value = update.values[k];
    at::Tensor gradient = update.gradients[k];
    const at::Tensor& exp_avg = update.states[0][k];
    const at::Tensor& exp_avg_sq = update.states[1][k];
    if (update.weight_decay != 0 && decay_ == Decay::kDecoupled) {
      value.mul_(1 - update.lr * update.weight_decay);
    } else if (update.weight_decay != 0) {
      gradient = gradient.add(value, update.weight_decay);
    }
    exp_avg.lerp_(gradient, 1 - beta1_);
    exp_avg_sq.mul_(beta2_).addcmul_(gradient, gradient, 1 - beta2_);
    at::Tensor denominator = exp_avg_sq.sqrt().div_(second_correction).add_(eps_);
    value.addcdiv_(exp_avg, denominator, -step_size);
  }
}

Lion::Lion(const OptimizerOptions& options, std::vector<FlatParameter> parameters)
    : Optimizer(options, std::move(parameters)) {
  std::tie(beta1_, beta2_) = checked_betas(options);
}

void Lion::update(const Update& update) {
  if (options().fused && update.values[0].is_cpu()) return update_fused(update);  // for speed only
  for (size_t k = 0; k < update.values.size(); ++k) {
    const at::Tensor& gradient = update.gradients[k];
    const at::Tensor& exp_avg = update.states[0][k];
    if (update.weight_decay != 0) update.values[k].mul_(1 - update.lr * update.weight_decay);
    at::Tensor direction = (exp_avg * beta1_).add_(gradient, 1 - beta1_).sign_();
    update.values[k].add_(direction, -update.lr);
    exp_avg.mul_(beta2_).add_(gradient, 1 - beta2_);
  }
}

// libtorch has no Lion kernel. One pass is bound by memory bandwidth, so it needs no special instructions.
void Lion::update_fused(const Update& update) {
  loop_over(update, LionLoop{.keep = static_cast<float>(1 - update.lr * update.weight_decay),
                             .lr = static_cast<float>(update.lr),
                             .beta1 = static_cast<float>(beta1_),
                             .one_minus_beta1 = static_cast<float>(1 - beta1_),
                             .beta2 = static_cast<float>(beta2_),
                             .one_minus_beta2 = static_cast<float>(1 - beta2_)});
}

Sgd::Sgd(const OptimizerOptions& options, std::vector<FlatParameter> parameters)
    : Optimizer(options, std::move(parameters)) {
  const double momentum = options.momentum, dampening = options.dampening;
  require(momentum >= 0 && momentum < 1, "optimizer.momentum = ", momentum,
          " must be a number of at least 0 and below 1; correct the config");
  require(dampening >= 0 && dampening <= 1, "optimizer.dampening = ", dampening,
          " must be a number from 0 to 1; correct the config");
  require(dampening == 0 || momentum != 0, "optimizer.dampening = ", dampening,
          " needs optimizer.momentum above 0; leave it out or set the momentum");
  require(!options.nesterov || (momentum != 0 && dampening == 0),
          "optimizer.nesterov = true needs optimizer.momentum above 0 and optimizer.dampening = 0; found ",
          momentum, " and ", dampening, "; leave it out or change these");
}

void Sgd::update(const Update& update) {
  const double momentum = options().momentum, dampening = options().dampening;
  // PyTorch sets the buffer to the first gradient. Without dampening, a buffer of zeros gives the same
  // result, so that the first step, and one after the buffers were restored, are no special cases.
  const bool fills_buffers = dampening != 0 && update.step == 1;
  if (options().fused) {
    std::vector<at::Tensor> buffers;
    if (momentum != 0) buffers = update.states[0];
    at::_fused_sgd_(update.values, update.gradients, buffers, update.weight_decay, momentum, update.lr,
                    dampening, options().nesterov, /*maximize=*/false, fills_buffers);
    return;
  }
  // The order of torch.optim.sgd's _single_tensor_sgd.
  for (size_t k = 0; k < update.values.size(); ++k) {
    const at::Tensor& value = update.values[k];
    at::Tensor gradient = update.gradients[k];
    if (update.weight_decay != 0) gradient = gradient.add(value, update.weight_decay);
    if (momentum != 0) {
      const at::Tensor& buffer = update.states[0][k];
      if (fills_buffers) {
        buffer.copy_(gradient);
      } else {
        buffer.mul_(momentum).add_(gradient, 1 - dampening);
      }
      gradient = options().nesterov ? gradient.add(buffer, momentum) : buffer;
    }
    value.add_(gradient, -update.lr);
  }
}

}  // namespace fsdp::optim
