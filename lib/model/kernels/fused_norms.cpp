#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <optional>

#include "base/util/error.h"
#include "model/kernels/below_autograd.h"
#include "model/kernels/fused.h"
#include "model/kernels/gradient_sink.h"
#include "model/kernels/meta.h"
#include "model/kernels/recomputed.h"
#include "model/kernels/reduce.h"

namespace fsdp::kernels {
namespace {

/// Returns {y}, or {x, y} if it passes x on, or, with a residual, {x + residual, y}: RMSNorm or, with a bias,
/// LayerNorm of x or the sum.
class Norm final : public torch::autograd::Function<Norm> {
 public:
  static variable_list forward(AutogradContext* context, const at::Tensor& given,
                               const std::optional<at::Tensor>& residual, const at::Tensor&,
                               const at::Tensor&, const Parameters& parameters, double epsilon,
                               bool passes_on) {
    const BelowAutograd below;
    const at::Tensor &weight = parameters.tensors[0], &bias = parameters.tensors[1];
    const bool has_bias = bias.defined();
    const at::Tensor x = given.contiguous(), added = residual ? residual->contiguous() : at::Tensor();
    const int64_t rows = rows_of(x);
    const at::Tensor sum = residual ? at::empty_like(x) : at::Tensor(), y = at::empty_like(x);
    // Statistics are the means, if there is a bias, and the reciprocals.
    const at::Tensor statistics = at::empty({has_bias ? 2 : 1, rows}, x.options().dtype(at::kFloat));
    run({x, added, weight, bias}, {sum, y, statistics}, epsilon);
    // The sum is not saved if its terms are available anyway.
    const bool adds_again = residual && (is_recomputed(given) || is_recomputed(*residual));
    save_operands(
        *context,
        {adds_again ? at::Tensor()
         : residual ? sum
                    : x,
         weight, bias, statistics, adds_again ? x : at::Tensor(), adds_again ? added : at::Tensor()},
        {{kTerm, given}, {kOtherTerm, residual ? *residual : given}});
    context->saved_data["has_residual"] = residual.has_value();
    context->saved_data["has_two_results"] = passes_on || residual;
    context->saved_data["epsilon"] = epsilon;
    if (passes_on) return {given, y};
    return residual ? variable_list{sum, y} : variable_list{y};
  }

  static variable_list again(AutogradContext* context) {
    const BelowAutograd below;
    const variable_list saved = operands_of(*context, OperandUse::kForwardAgain);
    const bool adds = saved[kTerm].defined();
    const at::Tensor x = (adds ? saved[kTerm] : saved[0]).contiguous(),
                     added = adds ? saved[kOtherTerm].contiguous() : at::Tensor();
    const at::Tensor sum = adds ? at::empty_like(x) : x, y = at::empty_like(x);
    run({x, added, saved[1], saved[2]}, {adds ? sum : at::Tensor(), y, at::empty_like(saved[3])},
        context->saved_data["epsilon"].toDouble());
    return context->saved_data["has_two_results"].toBool() ? variable_list{sum, y} : variable_list{y};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const BelowAutograd below;
    const variable_list saved = operands_of(*context);
    const at::Tensor &weight = saved[1], &bias = saved[2];
    const at::Tensor x = saved[kTerm].defined() ? saved[kTerm] + saved[kOtherTerm] : saved[0];
    const bool has_residual = context->saved_data["has_residual"].toBool(), has_bias = bias.defined();
    const at::Tensor dy = gradients.back().contiguous();
    const at::Tensor dsum = gradients.size() > 1 ? gradients[0].contiguous() : at::Tensor();
    const at::Tensor dx = at::empty_like(x);
    const ParameterSums sums(x, has_bias ? 2 : 1);
    const int64_t rows = rows_of(x);
    const auto* first = saved[3].const_data_ptr<float>();
    const KernelsFor kernels(x);
    (has_bias ? kernels->layer_norm_backward : kernels->rms_norm_backward)(
        {.dy = dy.data_ptr(),
         .x = x.data_ptr(),
         .weight = weight.data_ptr(),
         .mean = has_bias ? first : nullptr,
         .reciprocal = has_bias ? first + rows : first,
         .dsum = data_or_null(dsum),
         .dx = dx.data_ptr(),
         .dweight = sums.of(0),
         .dbias = has_bias ? sums.of(1) : nullptr,
         .rows = rows,
         .width = x.size(-1)},
        sums.parts());
    const size_t edge = has_residual ? 2 : 1;  // operand number of the weight; the bias follows
    variable_list wanted{weight};
    if (has_bias) wanted.push_back(bias);
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (!is_wanted(*context, edge + i, wanted[i])) wanted[i] = at::Tensor();
    }
    variable_list of_vectors = sums.gradients(wanted);
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (wanted[i].defined()) of_vectors[i] = deliver(*context, edge + i, wanted[i], of_vectors[i]);
    }
    of_vectors.resize(2);
    return {dx, has_residual ? dx : at::Tensor(), of_vectors[0], of_vectors[1], {}, {}, {}};
  }

 private:
  /// Slots of the terms of a sum that is computed again.
  static constexpr size_t kTerm = 4, kOtherTerm = 5;

  struct Inputs {
    at::Tensor x, residual, weight, bias;
  };
  struct Results {
    at::Tensor sum, y, statistics;
  };
  static void run(const Inputs& in, const Results& out, double epsilon) {
    const int64_t rows = rows_of(in.x);
    const bool has_bias = in.bias.defined();
    auto* first = out.statistics.data_ptr<float>();
    const KernelsFor kernels(in.x);
    (has_bias ? kernels->layer_norm : kernels->rms_norm)({.x = in.x.data_ptr(),
                                                          .residual = data_or_null(in.residual),
                                                          .sum = data_or_null(out.sum),
                                                          .weight = in.weight.data_ptr(),
                                                          .bias = data_or_null(in.bias),
                                                          .y = out.y.data_ptr(),
                                                          .mean = has_bias ? first : nullptr,
                                                          .reciprocal = has_bias ? first + rows : first,
                                                          .rows = rows,
                                                          .width = in.x.size(-1),
                                                          .epsilon = static_cast<float>(epsilon)});
  }
};

bool is_vector_for(const at::Tensor& x, const at::Tensor& vector) {
  return vector.scalar_type() == x.scalar_type() && vector.dim() == 1 && vector.size(0) == x.size(-1) &&
         vector.is_contiguous();
}

/// Returns {x + residual, x that is passed on or undefined, norm}.
std::pair<at::Tensor, at::Tensor> norm(const at::Tensor& x, const std::optional<at::Tensor>& residual,
                                       const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                                       double epsilon, bool recomputed, bool passes_on = false) {
  FSDP_CHECK(can_fuse(x) && is_vector_for(x, weight) && (!bias || is_vector_for(x, *bias)));
  FSDP_CHECK(!residual || (residual->scalar_type() == x.scalar_type() && residual->sizes() == x.sizes()));
  const at::Tensor b = bias.value_or(at::Tensor());
  const variable_list outputs = Norm::apply(x, residual, seen_parameter(weight, x), seen_parameter(b, x),
                                            Parameters{{weight, b}}, epsilon, passes_on);
  if (recomputed || is_for_cpu(x)) recompute_results<Norm>(outputs.back());
  return {outputs.size() > 1 ? outputs[0] : at::Tensor(), outputs.back()};
}

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon, bool recomputed) {
  return norm(x, std::nullopt, weight, std::nullopt, epsilon, recomputed).second;
}

std::pair<at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& x, const at::Tensor& residual,
                                               const at::Tensor& weight, double epsilon, bool recomputed) {
  return norm(x, residual, weight, std::nullopt, epsilon, recomputed);
}

std::pair<at::Tensor, at::Tensor> rms_norm_beside(const at::Tensor& x, const at::Tensor& weight,
                                                  double epsilon, bool recomputed) {
  return norm(x, std::nullopt, weight, std::nullopt, epsilon, recomputed, /*passes_on=*/true);
}

at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double epsilon,
                      bool recomputed) {
  return norm(x, std::nullopt, weight, bias, epsilon, recomputed).second;
}

std::pair<at::Tensor, at::Tensor> add_layer_norm(const at::Tensor& x, const at::Tensor& residual,
                                                 const at::Tensor& weight, const at::Tensor& bias,
                                                 double epsilon, bool recomputed) {
  return norm(x, residual, weight, bias, epsilon, recomputed);
}

std::pair<at::Tensor, at::Tensor> layer_norm_beside(const at::Tensor& x, const at::Tensor& weight,
                                                    const at::Tensor& bias, double epsilon, bool recomputed) {
  return norm(x, std::nullopt, weight, bias, epsilon, recomputed, /*passes_on=*/true);
}

}  // namespace fsdp::kernels
