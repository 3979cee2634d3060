#include "state/optim/adaptive_rates.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "state/optim/element_loop.h"

namespace fsdp::optim {
namespace {

// One pass each, bound by memory bandwidth. libtorch has such kernels for Adagrad only.

struct AdagradLoop {
  float decay, lr, eps;

  void operator()(int64_t n, float* __restrict value, const float* __restrict gradient, float* __restrict sum,
                  float*) const {
    for (int64_t i = 0; i < n; ++i) {
      const float g = gradient[i] + decay * value[i];
      sum[i] += g * g;
      value[i] -= lr * g / (std::sqrt(sum[i]) + eps);
    }
  }
};

struct AdadeltaLoop {
  float decay, lr, eps, rho, one_minus_rho;

  void operator()(int64_t n, float* __restrict value, const float* __restrict gradient,
                  float* __restrict square_avg, float* __restrict acc_delta) const {
    for (int64_t i = 0; i < n; ++i) {
      const float g = gradient[i] + decay * value[i];
      square_avg[i] = rho * square_avg[i] + one_minus_rho * (g * g);
      const float delta = std::sqrt(acc_delta[i] + eps) / std::sqrt(square_avg[i] + eps) * g;
      acc_delta[i] = rho * acc_delta[i] + one_minus_rho * (delta * delta);
      value[i] -= lr * delta;
    }
  }
};

struct AdamaxLoop {
  float decay, step_size, beta1, one_minus_beta1, beta2, eps;

  void operator()(int64_t n, float* __restrict value, const float* __restrict gradient,
                  float* __restrict exp_avg, float* __restrict exp_inf) const {
    for (int64_t i = 0; i < n; ++i) {
      const float g = gradient[i] + decay * value[i];
      exp_avg[i] = beta1 * exp_avg[i] + one_minus_beta1 * g;
      exp_inf[i] = std::max(beta2 * exp_inf[i], std::abs(g) + eps);
      value[i] -= step_size * exp_avg[i] / exp_inf[i];
    }
  }
};

at::Tensor with_decay(const at::Tensor& gradient, const at::Tensor& value, double weight_decay) {
  return weight_decay == 0 ? gradient : gradient.add(value, weight_decay);
}

}  // namespace

// The arithmetic without fused kernels has the order of torch.optim's _single_tensor functions.

Adagrad::Adagrad(const OptimizerOptions& options, std::vector<FlatParameter> parameters)
    : Optimizer(options, std::move(parameters)), eps_(checked_eps(options)) {}

void Adagrad::update(const Update& update) {
  if (options().fused && update.values[0].is_cpu()) {  // for speed only
    return loop_over(update, AdagradLoop{.decay = static_cast<float>(update.weight_decay),
                                         .lr = static_cast<float>(update.lr),
                                         .eps = static_cast<float>(eps_)});
  }
  for (size_t k = 0; k < update.values.size(); ++k) {
    const at::Tensor &value = update.values[k], &sum = update.states[0][k];
    const at::Tensor gradient = with_decay(update.gradients[k], value, update.weight_decay);
    sum.addcmul_(gradient, gradient);
    value.addcdiv_(gradient, sum.sqrt().add_(eps_), -update.lr);
  }
}

Adadelta::Adadelta(const OptimizerOptions& options, std::vector<FlatParameter> parameters)
    : Optimizer(options, std::move(parameters)), eps_(checked_eps(options)) {
  require(options.rho >= 0 && options.rho <= 1, "optimizer.rho = ", options.rho,
          " must be a number from 0 to 1; correct the config");
}

void Adadelta::update(const Update& update) {
  const double rho = options().rho;
  if (options().fused && update.values[0].is_cpu()) {  // for speed only
    return loop_over(update, AdadeltaLoop{.decay = static_cast<float>(update.weight_decay),
                                          .lr = static_cast<float>(update.lr),
                                          .eps = static_cast<float>(eps_),
                                          .rho = static_cast<float>(rho),
                                          .one_minus_rho = static_cast<float>(1 - rho)});
  }
  for (size_t k = 0; k < update.values.size(); ++k) {
    const at::Tensor &value = update.values[k], &square_avg = update.states[0][k],
                     &acc_delta = update.states[1][k];
    const at::Tensor gradient = with_decay(update.gradients[k], value, update.weight_decay);
    square_avg.mul_(rho).addcmul_(gradient, gradient, 1 - rho);
    const at::Tensor deviation = square_avg.add(eps_).sqrt_();
    const at::Tensor delta = acc_delta.add(eps_).sqrt_().div_(deviation).mul_(gradient);
    acc_delta.mul_(rho).addcmul_(delta, delta, 1 - rho);
    value.add_(delta, -update.lr);
  }
}

Adamax::Adamax(const OptimizerOptions& options, std::vector<FlatParameter> parameters)
    : Optimizer(options, std::move(parameters)), eps_(checked_eps(options)) {
  std::tie(beta1_, beta2_) = checked_betas(options);
}

void Adamax::update(const Update& update) {
  const double step_size = update.lr / (1 - std::pow(beta1_, static_cast<double>(update.step)));
  if (options().fused && update.values[0].is_cpu()) {  // for speed only
    return loop_over(update, AdamaxLoop{.decay = static_cast<float>(update.weight_decay),
                                        .step_size = static_cast<float>(step_size),
                                        .beta1 = static_cast<float>(beta1_),
                                        .one_minus_beta1 = static_cast<float>(1 - beta1_),
                                        .beta2 = static_cast<float>(beta2_),
                                        .eps = static_cast<float>(eps_)});
  }
  for (size_t k = 0; k < update.values.size(); ++k) {
    const at::Tensor &value = update.values[k], &exp_avg = update.states[0][k],
                     &exp_inf = update.states[1][k];
    const at::Tensor gradient = with_decay(update.gradients[k], value, update.weight_decay);
    exp_avg.lerp_(gradient, 1 - beta1_);
    at::Tensor to = exp_inf.mul_(beta2_);
    at::maximum_out(to, to, gradient.abs().add_(eps_));
    value.addcdiv_(exp_avg, exp_inf, -step_size);
  }
}

}  // namespace fsdp::optim
