#pragma once

// Random parameters and gradients, whole and cut into shards, for the optimizers' tests.

#include <ATen/Functions.h>

#include "base/tensor/seeded_random.h"
#include "state/optim/optimizer.h"

namespace fsdp::optim {

inline at::Tensor random_values(int64_t n, const std::string& name) {
  return at::randn({n}, util::named_generator(7, name), at::TensorOptions(at::kFloat));
}

inline FlatParameter parameter_of(const at::Tensor& value) {
  return {"p", value.clone(), {{0, value.numel()}}};
}

/// For an optimizer over whole tensors, without matrices.
class WholeTensors final : public WholeMatrices {
 public:
  bool has_matrices(size_t) const override { return false; }
  void map(size_t, const at::Tensor&, const Function&) override {}
  void add_up(size_t, const at::Tensor&) override {}
};

/// Whole tensors one after another in one value.
inline FlatParameter parameter_of_tensors(const OptimizerOptions& options,
                                          const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  FlatParameter parameter{"unit", at::empty({0}), {}};
  for (const auto& [name, tensor] : tensors) {
    const int64_t begin = parameter.value.numel(), end = begin + tensor.numel();
    const Treatment treatment = treatment_of(options, name, tensor.sizes().vec());
    parameter.value = at::cat({parameter.value, tensor.flatten()});
    parameter.ranges.push_back({begin, end, treatment});
    parameter.tensors.push_back({name, tensor.sizes().vec(), treatment, {{0, tensor.numel()}}, begin});
  }
  return parameter;
}

/// An optimizer over such a parameter.
inline std::unique_ptr<Optimizer> over_tensors(
    const OptimizerOptions& options, const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  static WholeTensors whole;
  return make_optimizer(options, {parameter_of_tensors(options, tensors)}, &whole);
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
