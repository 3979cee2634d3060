#include "state/optim/lamb.h"

#include <ATen/Functions.h>

#include <cmath>
#include <tuple>

#include "state/optim/element_loop.h"

namespace fsdp::optim {

Lamb::Lamb(const OptimizerOptions& options, std::vector<FlatParameter> parameters, WholeMatrices* matrices)
    : TensorOptimizer(options, std::move(parameters), matrices), eps_(checked_eps(options)) {
  std::tie(beta1_, beta2_) = checked_betas(options);
}

void Lamb::update_ranges(size_t i, const at::Tensor& gradient, double lr, double) {
  const FlatParameter& parameter = parameters()[i];
  const size_t count = parameter.tensors.size();
  if (count == 0) return;
  const auto step = static_cast<double>(parameter_step_count(i));
  const double first_correction = 1 - std::pow(beta1_, step);
  const double second_correction = std::sqrt(1 - std::pow(beta2_, step));
  const at::Tensor exp_avgs = state("exp_avg", i), exp_avg_sqs = state("exp_avg_sq", i);
  const at::Tensor directions = at::empty_like(exp_avgs);
  std::vector<at::Tensor> parts;  // value and direction of each tensor
  for (const FlatParameter::Tensor& tensor : parameter.tensors) {
    const at::Tensor value = part_of(parameter.value, tensor), g = part_of(gradient, tensor),
                     exp_avg = part_of(exp_avgs, tensor), exp_avg_sq = part_of(exp_avg_sqs, tensor);
    at::Tensor direction = part_of(directions, tensor);
    exp_avg.lerp_(g, 1 - beta1_);
    exp_avg_sq.mul_(beta2_).addcmul_(g, g, 1 - beta2_);
    at::sqrt_out(direction, exp_avg_sq);
    direction.div_(second_correction).add_(eps_);
    at::div_out(direction, exp_avg, direction);
    direction.div_(first_correction);
    const double weight_decay = weight_decay_of(options(), tensor.treatment);
    if (weight_decay != 0) {
      read_value(i, tensor.begin, tensor.end(), [&](const at::Tensor& piece, int64_t begin) {
        directions.narrow(0, begin, piece.numel()).add_(piece, weight_decay);
      });
    }
    parts.insert(parts.end(), {value, direction});
  }
  std::vector<double> squares = sums_of_squares(parts);
  add_up(i, squares);
  for (size_t t = 0; t < count; ++t) {
    const Treatment& treatment = parameter.tensors[t].treatment;
    const double value = squares[2 * t], direction = squares[2 * t + 1];
    const bool adapts = weight_decay_of(options(), treatment) != 0 && value > 0 && direction > 0;
    const double ratio = adapts ? std::sqrt(value / direction) : 1;
    const double rate = lr_of(options(), treatment, lr) * ratio;
    const int64_t first = parameter.tensors[t].begin;
    change_value(i, first, first + parts[2 * t].numel(), [&](const at::Tensor& piece, int64_t begin) {
      piece.add_(directions.narrow(0, begin, piece.numel()), -rate);
    });
  }
}

}  // namespace fsdp::optim
