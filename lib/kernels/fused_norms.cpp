#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include "kernels/fused.h"
#include "kernels/parameter_sums.h"
#include "kernels/row_kernels.h"
#include "util/error.h"

namespace fsdp::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::Variable;
using torch::autograd::variable_list;

at::Tensor reciprocals_for(const at::Tensor& x) {
  return at::empty({rows_of(x)}, x.options().dtype(at::kFloat));
}

void norm_rows(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& sum,
               const at::Tensor& weight, const at::Tensor& y, const at::Tensor& reciprocal, double epsilon) {
  KernelsFor(x)->rms_norm({.x = x.data_ptr(),
                           .residual = data_or_null(residual),
                           .sum = data_or_null(sum),
                           .weight = weight.data_ptr(),
                           .y = y.data_ptr(),
                           .reciprocal = reciprocal.data_ptr<float>(),
                           .rows = reciprocal.numel(),
                           .width = x.size(-1),
                           .epsilon = static_cast<float>(epsilon)});
}

/// {gradient of x, sums for the weight's}; `dsum` may be undefined.
std::pair<at::Tensor, ParameterSums> norm_backward(const at::Tensor& dy, const at::Tensor& dsum,
                                                   const at::Tensor& x, const at::Tensor& weight,
                                                   const at::Tensor& reciprocal) {
  at::Tensor dx = at::empty_like(x);
  const ParameterSums sums(x, 1);
  KernelsFor(x)->rms_norm_backward({.dy = dy.data_ptr(),
                                    .x = x.data_ptr(),
                                    .weight = weight.data_ptr(),
                                    .reciprocal = reciprocal.data_ptr<float>(),
                                    .dsum = data_or_null(dsum),
                                    .dx = dx.data_ptr(),
                                    .dweight = sums.of(0),
                                    .rows = reciprocal.numel(),
                                    .width = x.size(-1)},
                                   sums.parts());
  return {dx, sums};
}

class RmsNorm final : public Function<RmsNorm> {
 public:
  static Variable forward(AutogradContext* context, const Variable& given, const Variable& weight,
                          double epsilon) {
    const at::Tensor x = given.contiguous();
    at::Tensor y = at::empty_like(x), reciprocal = reciprocals_for(x);
    norm_rows(x, {}, {}, weight, y, reciprocal, epsilon);
    context->save_for_backward({x, weight, reciprocal});
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    auto [dx, sums] = norm_backward(gradients[0].contiguous(), {}, saved[0], saved[1], saved[2]);
    return {dx, context->needs_input_grad(1) ? sums.gradient(0, saved[1]) : at::Tensor(), {}};
  }
};

class AddRmsNorm final : public Function<AddRmsNorm> {
 public:
  static variable_list forward(AutogradContext* context, const Variable& given, const Variable& residual,
                               const Variable& weight, double epsilon) {
    const at::Tensor x = given.contiguous();
    at::Tensor sum = at::empty_like(x), y = at::empty_like(x), reciprocal = reciprocals_for(x);
    norm_rows(x, residual.contiguous(), sum, weight, y, reciprocal, epsilon);
    context->save_for_backward({sum, weight, reciprocal});
    return {sum, y};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    if (!gradients[1].defined()) return {gradients[0], gradients[0], {}, {}};
    const at::Tensor dsum = gradients[0].defined() ? gradients[0].contiguous() : at::Tensor();
    auto [dx, sums] = norm_backward(gradients[1].contiguous(), dsum, saved[0], saved[1], saved[2]);
    return {dx, dx, context->needs_input_grad(2) ? sums.gradient(0, saved[1]) : at::Tensor(), {}};
  }
};

/// Of a layer norm, without autograd.
struct LayerNormed {
  at::Tensor sum, y, statistics;  ///< statistics: [2, rows] fp32, means and reciprocal deviations
};

LayerNormed layer_norm_rows(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight,
                            const at::Tensor& bias, double epsilon) {
  const int64_t count = rows_of(x);
  LayerNormed result{.sum = residual.defined() ? at::empty_like(x) : at::Tensor(),
                     .y = at::empty_like(x),
                     .statistics = at::empty({2, count}, x.options().dtype(at::kFloat))};
  auto* mean = result.statistics.data_ptr<float>();
  KernelsFor(x)->layer_norm({.x = x.data_ptr(),
                             .residual = data_or_null(residual),
                             .sum = data_or_null(result.sum),
                             .weight = weight.data_ptr(),
                             .bias = bias.data_ptr(),
                             .y = result.y.data_ptr(),
                             .mean = mean,
                             .reciprocal = mean + count,
                             .rows = count,
                             .width = x.size(-1),
                             .epsilon = static_cast<float>(epsilon)});
  return result;
}

/// {gradient of x, sums for those of weight and bias}; `dsum` may be undefined.
std::pair<at::Tensor, ParameterSums> layer_norm_backward(const at::Tensor& dy, const at::Tensor& dsum,
                                                         const at::Tensor& x, const at::Tensor& weight,
                                                         const at::Tensor& statistics) {
  at::Tensor dx = at::empty_like(x);
  const ParameterSums sums(x, 2);
  const auto* mean = statistics.data_ptr<float>();
  KernelsFor(x)->layer_norm_backward({.dy = dy.data_ptr(),
                                      .x = x.data_ptr(),
                                      .weight = weight.data_ptr(),
                                      .mean = mean,
                                      .reciprocal = mean + rows_of(x),
                                      .dsum = data_or_null(dsum),
                                      .dx = dx.data_ptr(),
                                      .dweight = sums.of(0),
                                      .dbias = sums.of(1),
                                      .rows = rows_of(x),
                                      .width = x.size(-1)},
                                     sums.parts());
  return {dx, sums};
}

class LayerNorm final : public Function<LayerNorm> {
 public:
  static Variable forward(AutogradContext* context, const Variable& given, const Variable& weight,
                          const Variable& bias, double epsilon) {
    const at::Tensor x = given.contiguous();
    LayerNormed normed = layer_norm_rows(x, {}, weight, bias, epsilon);
    context->save_for_backward({x, weight, bias, normed.statistics});
    return normed.y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &weight = saved[1], &bias = saved[2];
    auto [dx, sums] = layer_norm_backward(gradients[0].contiguous(), {}, saved[0], weight, saved[3]);
    return {dx,
            context->needs_input_grad(1) ? sums.gradient(0, weight) : at::Tensor(),
            context->needs_input_grad(2) ? sums.gradient(1, bias) : at::Tensor(),
            {}};
  }
};

class AddLayerNorm final : public Function<AddLayerNorm> {
 public:
  static variable_list forward(AutogradContext* context, const Variable& given, const Variable& residual,
                               const Variable& weight, const Variable& bias, double epsilon) {
    LayerNormed normed = layer_norm_rows(given.contiguous(), residual.contiguous(), weight, bias, epsilon);
    context->save_for_backward({normed.sum, weight, bias, normed.statistics});
    return {normed.sum, normed.y};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    if (!gradients[1].defined()) return {gradients[0], gradients[0], {}, {}, {}};
    const at::Tensor &weight = saved[1], &bias = saved[2];
    const at::Tensor dsum = gradients[0].defined() ? gradients[0].contiguous() : at::Tensor();
    auto [dx, sums] = layer_norm_backward(gradients[1].contiguous(), dsum, saved[0], weight, saved[3]);
    return {dx,
            dx,
            context->needs_input_grad(2) ? sums.gradient(0, weight) : at::Tensor(),
            context->needs_input_grad(3) ? sums.gradient(1, bias) : at::Tensor(),
            {}};
  }
};

bool are_vectors_for(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  auto fits = [&](const at::Tensor& vector) {
    return vector.scalar_type() == x.scalar_type() && vector.dim() == 1 && vector.size(0) == x.size(-1) &&
           vector.is_contiguous();
  };
  return fits(weight) && fits(bias);
}

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon) {
  FSDP_CHECK(can_fuse(x) && weight.scalar_type() == x.scalar_type() && weight.size(0) == x.size(-1));
  return RmsNorm::apply(x, weight, epsilon);
}

std::pair<at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& x, const at::Tensor& residual,
                                               const at::Tensor& weight, double epsilon) {
  FSDP_CHECK(can_fuse(x) && weight.scalar_type() == x.scalar_type() && weight.size(0) == x.size(-1) &&
             residual.scalar_type() == x.scalar_type() && residual.sizes() == x.sizes());
  variable_list outputs = AddRmsNorm::apply(x, residual, weight, epsilon);
  return {outputs[0], outputs[1]};
}

at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double epsilon) {
  FSDP_CHECK(can_fuse(x) && are_vectors_for(x, weight, bias));
  return LayerNorm::apply(x, weight, bias, epsilon);
}

std::pair<at::Tensor, at::Tensor> add_layer_norm(const at::Tensor& x, const at::Tensor& residual,
                                                 const at::Tensor& weight, const at::Tensor& bias,
                                                 double epsilon) {
  FSDP_CHECK(can_fuse(x) && are_vectors_for(x, weight, bias) && residual.scalar_type() == x.scalar_type() &&
             residual.sizes() == x.sizes());
  variable_list outputs = AddLayerNorm::apply(x, residual, weight, bias, epsilon);
  return {outputs[0], outputs[1]};
}

}  // namespace fsdp::kernels
