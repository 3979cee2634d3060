#pragma once

// Random parameters and gradients, whole and cut into shards, for the optimizers' tests.

#include <ATen/Functions.h>

#include "optim/optimizer.h"
#include "util/seeded_random.h"

namespace fsdp::optim {

inline at::Tensor random_values(int64_t n, const std::string& name) {
  return at::randn({n}, util::named_generator(7, name), at::TensorOptions(at::kFloat));
}

inline FlatParameter parameter_of(const at::Tensor& value) {
  return {"p", value.clone(), {{0, value.numel()}}};
}

inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.contiguous().view(at::kInt).equal(b.contiguous().view(at::kInt));
}

/// The gradient of take_steps() at the step, which counts from 1.
inline at::Tensor gradient_of_step(const at::Tensor& gradients, int64_t step) {
  auto t = static_cast<double>(step);
  return gradients * (1 / t) - 0.01 * t;
}

/// Steps an optimizer `steps` times with gradients that depend on the step.
inline void take_steps(Optimizer& optimizer, int64_t steps, const at::Tensor& gradients, double lr) {
  for (int64_t i = 0; i < steps; ++i) {
    optimizer.step({gradient_of_step(gradients, optimizer.step_count() + 1)}, lr);
  }
}

}  // namespace fsdp::optim
