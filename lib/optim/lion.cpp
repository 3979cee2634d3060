#include "optim/lion.h"

#include <ATen/Functions.h>

#include <tuple>

#include "optim/betas.h"
#include "util/parallel.h"

namespace fsdp::optim {
namespace {

/// The numbers of a step, rounded to float as tensor operations round scalars.
struct LionStep {
  float keep, lr, beta1, one_minus_beta1, beta2, one_minus_beta2;
};

void lion_loop(const LionStep& step, int64_t n, float* __restrict value, const float* __restrict gradient,
               float* __restrict exp_avg) {
  for (int64_t i = 0; i < n; ++i) {
    const float direction = step.beta1 * exp_avg[i] + step.one_minus_beta1 * gradient[i];
    const float sign = static_cast<float>(direction > 0) - static_cast<float>(direction < 0);
    value[i] = step.keep * value[i] - step.lr * sign;
    exp_avg[i] = step.beta2 * exp_avg[i] + step.one_minus_beta2 * gradient[i];
  }
}

}  // namespace

Lion::Lion(const OptimizerOptions& options, std::vector<FlatParameter> parameters)
    : Optimizer(options, std::move(parameters)), fused_(options.fused) {
  std::tie(beta1_, beta2_) = checked_betas(options);
}

void Lion::update(const Update& update) {
  if (fused_ && update.values[0].is_cpu()) {
    update_fused(update);
  } else {
    update_composed(update);
  }
}

// libtorch has no such kernel. One pass is bound by memory, whatever the instructions are.
void Lion::update_fused(const Update& update) {
  const LionStep step{.keep = static_cast<float>(1 - update.lr * update.weight_decay),
                      .lr = static_cast<float>(update.lr),
                      .beta1 = static_cast<float>(beta1_),
                      .one_minus_beta1 = static_cast<float>(1 - beta1_),
                      .beta2 = static_cast<float>(beta2_),
                      .one_minus_beta2 = static_cast<float>(1 - beta2_)};
  for (size_t k = 0; k < update.values.size(); ++k) {
    float* value = update.values[k].data_ptr<float>();
    const float* gradient = update.gradients[k].const_data_ptr<float>();
    float* exp_avg = update.states[0][k].data_ptr<float>();
    util::parallel_for(0, update.values[k].numel(), kGrain, [&](int64_t begin, int64_t end) {
      lion_loop(step, end - begin, value + begin, gradient + begin, exp_avg + begin);
    });
  }
}

void Lion::update_composed(const Update& update) {
  for (size_t k = 0; k < update.values.size(); ++k) {
    const at::Tensor& gradient = update.gradients[k];
    const at::Tensor& exp_avg = update.states[0][k];
    if (update.weight_decay != 0) update.values[k].mul_(1 - update.lr * update.weight_decay);
    at::Tensor direction = (exp_avg * beta1_).add_(gradient, 1 - beta1_).sign_();
    update.values[k].add_(direction, -update.lr);
    exp_avg.mul_(beta2_).add_(gradient, 1 - beta2_);
  }
}

}  // namespace fsdp::optim
