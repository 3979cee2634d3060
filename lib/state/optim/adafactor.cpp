#include "state/optim/adafactor.h"

#include <ATen/Functions.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <cmath>

#include "state/optim/matrix_blocks.h"

namespace fsdp::optim {
namespace {

/// Updates the average of squares, [rows] or [columns], with the squares of this step.
void add_mean(const at::Tensor& average, const double* sums, double elements, double eps, double beta2) {
  const int64_t n = average.numel();
  const at::Tensor means = at::from_blob(const_cast<double*>(sums), {n}, at::kDouble).div(elements).add_(eps);
  average.mul_(beta2).add_(means.to(average.options()), 1 - beta2);
}

}  // namespace

Adafactor::Adafactor(const OptimizerOptions& options, std::vector<FlatParameter> parameters,
                     WholeMatrices* matrices)
    : TensorOptimizer(options, std::move(parameters), matrices) {
  require(options.clip_threshold > 0, "optimizer.clip_threshold = ", options.clip_threshold,
          " must be a number above 0; 1 is usual");
  require(options.decay_rate >= -1 && options.decay_rate <= 0, "optimizer.decay_rate = ", options.decay_rate,
          " must be a number from -1 to 0; -0.8 is usual");
  require(options.beta1 >= 0 && options.beta1 < 1, "optimizer.beta1 = ", options.beta1,
          " must be a number of at least 0 and below 1; correct the config");
  const std::vector<double>& eps = options.adafactor_eps;
  require(eps.size() == 2 && eps[0] >= 0 && eps[1] >= 0,
          "optimizer.adafactor_eps must be two numbers of at least 0; [1e-30, 1e-3] is usual");
}

std::vector<double> Adafactor::first_sums(const FlatParameter& parameter, const at::Tensor& gradient) const {
  std::vector<std::vector<int64_t>> shapes;
  std::vector<at::Tensor> values;
  for (const FlatParameter::Tensor& tensor : parameter.tensors) {
    shapes.push_back(tensor.shape);
    values.push_back(part_of(parameter.value, tensor));
  }
  std::vector<double> sums = sums_of_squares(values);
  sums.resize(static_cast<size_t>(sums_of_tensors(options(), shapes)[0]));
  double* next = sums.data() + values.size();
  for (const FlatParameter::Tensor& tensor : parameter.tensors) {
    if (!tensor.treatment.factored) continue;
    const int64_t rows = tensor.shape[0], columns = tensor.shape[1];
    for (const MatrixBlock& block : blocks_of(tensor.parts, rows, columns)) {
      add_squares(block.of(part_of(gradient, tensor)), next + block.row, next + rows + block.column);
    }
    next += rows + columns;
  }
  return sums;
}

void Adafactor::find_directions(size_t i, const at::Tensor& gradient, const std::vector<double>& sums,
                                const at::Tensor& directions) {
  const FlatParameter& parameter = parameters()[i];
  const double eps = options().adafactor_eps[0];
  const double beta2 = 1 - std::pow(static_cast<double>(parameter_step_count(i)), options().decay_rate);
  const double* next = sums.data() + parameter.tensors.size();
  for (const FlatParameter::Tensor& tensor : parameter.tensors) {
    const at::Tensor g = part_of(gradient, tensor);
    at::Tensor direction = part_of(directions, tensor);
    if (!tensor.treatment.factored) {
      const at::Tensor average = state_of("exp_avg_sq", i, tensor.begin, tensor.end()).data;
      at::mul_out(direction, g, g).add_(eps);
      average.mul_(beta2).add_(direction, 1 - beta2);
      at::rsqrt_out(direction, average).mul_(g);
      continue;
    }
    const int64_t rows = tensor.shape[0], columns = tensor.shape[1];
    const at::Tensor of_rows = state_of_tensor("exp_avg_sq_row", i, tensor.name),
                     of_columns = state_of_tensor("exp_avg_sq_col", i, tensor.name);
    add_mean(of_rows, next, static_cast<double>(columns), eps, beta2);
    add_mean(of_columns, next + rows, static_cast<double>(rows), eps, beta2);
    next += rows + columns;
    const at::Tensor row_factors = of_rows.div(of_rows.mean(at::kDouble)).rsqrt_().unsqueeze(1),
                     column_factors = of_columns.rsqrt();
    for (const MatrixBlock& block : blocks_of(tensor.parts, rows, columns)) {
      at::Tensor to = block.of(direction);
      at::mul_out(to, block.of(g), row_factors.narrow(0, block.row, block.rows));
      to.mul_(column_factors.narrow(0, block.column, block.columns));
    }
  }
}

void Adafactor::update_ranges(size_t i, const at::Tensor& gradient, double lr, double) {
  const FlatParameter& parameter = parameters()[i];
  if (parameter.tensors.empty()) return;
  std::vector<double> sums = first_sums(parameter, gradient);
  add_up(i, sums);
  const at::Tensor directions = at::empty(parameter.value.sizes(), gradient.options());
  find_directions(i, gradient, sums, directions);

  std::vector<at::Tensor> parts;
  for (const FlatParameter::Tensor& tensor : parameter.tensors) parts.push_back(part_of(directions, tensor));
  std::vector<double> squares = sums_of_squares(parts);
  add_up(i, squares);
  const double most = 1 / std::sqrt(static_cast<double>(parameter_step_count(i))), beta1 = options().beta1;
  for (size_t t = 0; t < parts.size(); ++t) {
    const FlatParameter::Tensor& tensor = parameter.tensors[t];
    const double elements = static_cast<double>(c10::multiply_integers(tensor.shape));
    double rate = lr_of(options(), tensor.treatment, lr);
    if (options().relative_step) rate = std::min(rate, most);
    if (options().scale_parameter) {
      rate *= std::max(options().adafactor_eps[1], std::sqrt(sums[t] / elements));
    }
    const double scale = rate / std::max(1.0, std::sqrt(squares[t] / elements) / options().clip_threshold);
    const double weight_decay = weight_decay_of(options(), tensor.treatment);
    change_value(i, tensor.begin, tensor.end(), [&](const at::Tensor& value, int64_t begin) {
      const at::Tensor direction = directions.narrow(0, begin, value.numel());
      if (weight_decay != 0) value.mul_(1 - rate * weight_decay);
      if (beta1 == 0) {
        value.add_(direction, -scale);
        return;
      }
      const at::Tensor average = state("exp_avg", i).narrow(0, begin, value.numel());
      value.sub_(average.mul_(beta1).add_(direction, (1 - beta1) * scale));
    });
  }
}

}  // namespace fsdp::optim
