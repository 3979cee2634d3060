#include "optim/adam.h"

#include <ATen/Functions.h>

#include <cmath>
#include <tuple>

#include "kernels/adam.h"
#include "optim/betas.h"
#include "util/error.h"

namespace fsdp::optim {

using util::ErrorKind;
using util::fail;

Adam::Adam(const OptimizerOptions& options, Decay decay, std::vector<FlatParameter> parameters)
    : Optimizer(options, std::move(parameters)), decay_(decay), eps_(options.eps), fused_(options.fused) {
  std::tie(beta1_, beta2_) = checked_betas(options);
  if (!(eps_ >= 0 && std::isfinite(eps_))) {
    fail(ErrorKind::kUsage, "optimizer.eps = ", eps_, " must be a number of at least 0; correct the config");
  }
}

bool Adam::scales_gradients_of(const at::Tensor& value) const {
  return fused_ && kernels::can_step_adam(value);
}

void Adam::update(const Update& update) {
  if (scales_gradients_of(update.values[0])) {
    update_on_gpu(update);
  } else if (fused_) {
    update_fused(update);
  } else {
    update_composed(update);
  }
}

void Adam::update_on_gpu(const Update& update) {
  const bool decoupled = decay_ == Decay::kDecoupled;
  const auto step = static_cast<double>(update.step);
  const kernels::AdamNumbers numbers{
      .gradient_scale = static_cast<float>(update.gradient_scale),
      .keep = static_cast<float>(decoupled ? 1 - update.lr * update.weight_decay : 1),
      .decay = static_cast<float>(decoupled ? 0 : update.weight_decay),
      .beta1 = static_cast<float>(beta1_),
      .one_minus_beta1 = static_cast<float>(1 - beta1_),
      .beta2 = static_cast<float>(beta2_),
      .one_minus_beta2 = static_cast<float>(1 - beta2_),
      .step_size = static_cast<float>(update.lr / (1 - std::pow(beta1_, step))),
      .second_correction = static_cast<float>(std::sqrt(1 - std::pow(beta2_, step))),
      .eps = static_cast<float>(eps_)};
  for (size_t k = 0; k < update.values.size(); ++k) {
    kernels::step_adam({.value = update.values[k],
                        .gradient = update.gradients[k],
                        .exp_avg = update.states[0][k],
                        .exp_avg_sq = update.states[1][k]},
                       numbers);
  }
}

void Adam::update_fused(const Update& update) {
  // The kernel takes the step as a float tensor for each value; it only reads it, so one serves all.
  at::Tensor step = at::full({}, static_cast<double>(update.step), update.values[0].options());
  std::vector<at::Tensor> steps(update.values.size(), step);
  if (decay_ == Decay::kDecoupled) {
    at::_fused_adamw_(update.values, update.gradients, update.states[0], update.states[1],
                      /*max_exp_avg_sqs=*/{}, steps, update.lr, beta1_, beta2_, update.weight_decay, eps_,
                      /*amsgrad=*/false, /*maximize=*/false);
  } else {
    at::_fused_adam_(update.values, update.gradients, update.states[0], update.states[1],
                     /*max_exp_avg_sqs=*/{}, steps, update.lr, beta1_, beta2_, update.weight_decay, eps_,
                     /*amsgrad=*/false, /*maximize=*/false);
  }
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

}  // namespace fsdp::optim
