#include "model/kernels/matmul.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_unsafe_view.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>

#include <utility>

#include "base/tensor/autocast.h"
#include "base/util/error.h"
#include "base/util/matrix_units.h"
#include "model/kernels/below_autograd.h"
#include "model/kernels/factor_products.h"
#include "model/kernels/gradient_sink.h"
#include "model/kernels/meta.h"
#include "model/kernels/product_choices.h"
#include "model/kernels/product_epilogues.h"
#include "model/kernels/recomputed.h"
#include "model/kernels/reduce.h"

namespace fsdp::kernels {
namespace {

Matmul fastest_here() {
  if (util::has_matrix_unit()) return Matmul::kAmx;
  return has_small_products(at::kFloat) ? Matmul::kOneDnn : Matmul::kMkl;
}

/// Computes y = x W + b with W = weight^T or, if `transposed`, the weight. x: [..., in]
class WeightProduct final : public torch::autograd::Function<WeightProduct> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& given, const at::Tensor&,
                            const at::Tensor&, const at::Tensor&, const Parameters& parameters,
                            bool transposed, Matmul matmul, bool recomputed, bool leaves_bias,
                            Addend* addend) {
    const BelowAutograd below;
    const at::Tensor &weight = parameters.tensors[0], &bias = parameters.tensors[1];
    const at::Tensor x = as_matrix(given);
    const bool is_needed = recomputed || weight.requires_grad();
    save_operands(*context, {is_needed ? x : at::Tensor(), weight, bias}, {{0, given}});
    context->saved_data["transposed"] = transposed;
    context->saved_data["leaves_bias"] = leaves_bias;
    context->saved_data["matmul"] = static_cast<int64_t>(matmul);
    if (recomputed) context->saved_data["shape"] = given.sizes();
    const bool adds = addend != nullptr && product_choices(x.device()) != nullptr;
    const at::Tensor y = adds ? product_with(x, transposed ? weight : flipped(weight), bias, *addend)
                              : run(x, weight, bias, transposed, matmul);
    context->saved_data["added"] = adds && addend->is_added;
    return shaped(y, given);
  }

  static variable_list again(AutogradContext* context) {
    const BelowAutograd below;
    const variable_list saved = operands_of(*context, OperandUse::kForwardAgain);
    const at::Tensor y =
        run(as_matrix(saved[0]), saved[1], saved[2], context->saved_data["transposed"].toBool(),
            static_cast<Matmul>(context->saved_data["matmul"].toInt()));
    return {shaped(y, context->saved_data["shape"].toIntVector())};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const BelowAutograd below;
    // The gradient of a recomputed x comes first, because the function that computes x may need it.
    const bool makes_x = context->needs_input_grad(0) && is_computed_again(*context, 0);
    variable_list saved = makes_x ? context->get_saved_variables() : operands_of(*context);
    const at::Tensor weight = saved[1], bias = saved[2];
    const bool transposed = context->saved_data["transposed"].toBool();
    const auto matmul = static_cast<Matmul>(context->saved_data["matmul"].toInt());
    const at::Tensor dy = as_matrix(gradients[0]);
    at::Tensor dx, dweight, dbias, dadded;
    if (context->saved_data["added"].toBool()) dadded = gradients[0];
    if (context->needs_input_grad(0)) {
      dx = shaped(product_of(dy, transposed ? flipped(weight) : weight, matmul), gradients[0]);
    }
    if (makes_x) saved = operands_of(*context, OperandUse::kBackward, dx);
    const bool wants_bias =
        bias.defined() && !context->saved_data["leaves_bias"].toBool() && is_wanted(*context, 2, bias);
    std::optional<LayerGradients> both;
    if (is_wanted(*context, 1, weight)) {
      const at::Tensor x = as_matrix(saved[0]);
      if (wants_bias && transposed) both = gradients_at_once(weight, bias, x, dy);
      dweight = both         ? both->weight
                : transposed ? weight_gradient(weight, flipped(x), dy, matmul)
                             : weight_gradient(weight, flipped(dy), x, matmul);
      dweight = deliver(*context, 1, weight, dweight);
    }
    if (wants_bias) dbias = deliver(*context, 2, bias, both ? both->bias : gradient_of_bias(dy, bias));
    return {dx, dweight, dbias, dadded, {}, {}, {}, {}, {}, {}};
  }

 private:
  static at::Tensor run(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                        bool transposed, Matmul matmul) {
    const auto added = bias.defined() ? std::optional(bias) : std::nullopt;
    return product_of(x, transposed ? weight : flipped(weight), matmul, added);
  }
};

at::Tensor weight_product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                          bool transposed, Matmul matmul, bool recomputed, bool leaves_bias = false,
                          Addend* given = nullptr) {
  Addend* const addend = recomputed ? nullptr : given;  // it would have to be kept
  const at::Tensor y =
      WeightProduct::apply(x, seen_parameter(weight, x), seen_parameter(bias, x),
                           addend != nullptr ? addend->x : seen_parameter({}, x), Parameters{{weight, bias}},
                           transposed, matmul, recomputed, leaves_bias, addend);
  if (recomputed) recompute_results<WeightProduct>(y);
  return y;
}

/// Computes y_i = x W_i^T. x: [..., in]
class ProductsOfOne final : public torch::autograd::Function<ProductsOfOne> {
 public:
  static variable_list forward(AutogradContext* context, const at::Tensor& given, at::TensorList,
                               const Parameters& parameters, Matmul matmul, bool recomputed) {
    const BelowAutograd below;
    const at::Tensor x = as_matrix(given);
    const at::TensorList weights = parameters.tensors;
    variable_list saved{recomputed || any_is_trained(parameters.tensors) ? x : at::Tensor()};
    saved.insert(saved.end(), weights.begin(), weights.end());
    save_operands(*context, std::move(saved), {{0, given}});
    context->saved_data["matmul"] = static_cast<int64_t>(matmul);
    if (recomputed) context->saved_data["shape"] = given.sizes();
    return run(x, weights, matmul, given.sizes());
  }

  static variable_list again(AutogradContext* context) {
    const BelowAutograd below;
    const variable_list saved = operands_of(*context, OperandUse::kForwardAgain);
    return run(as_matrix(saved[0]), at::TensorList(saved).slice(1),
               static_cast<Matmul>(context->saved_data["matmul"].toInt()),
               context->saved_data["shape"].toIntVector());
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const BelowAutograd below;
    const variable_list saved = operands_of(*context);
    const auto matmul = static_cast<Matmul>(context->saved_data["matmul"].toInt());
    variable_list results(saved.size() + 3);
    std::optional<GradientsWith> of_weights;
    const at::Tensor x = saved[0].defined() ? as_matrix(saved[0]) : at::Tensor();
    if (x.defined()) of_weights.emplace(x, matmul);
    std::vector<Summands> of_input;
    for (size_t i = 1; i < saved.size(); ++i) {
      const at::Tensor dy = as_matrix(gradients[i - 1]);
      if (is_wanted(*context, i, saved[i])) {
        results[i] = deliver(*context, i, saved[i], of_weights->add(saved[i], flipped(dy)));
      }
      of_input.push_back({dy, {saved[i]}});
    }
    if (of_weights) of_weights->finish();
    if (context->needs_input_grad(0)) {
      results[0] = shaped(sums_of_products(of_input, matmul)[0], gradients[0]);
    }
    return results;
  }

 private:
  static variable_list run(const at::Tensor& x, at::TensorList weights, Matmul matmul,
                           at::IntArrayRef shape) {
    std::vector<at::Tensor> transposed;
    for (const at::Tensor& weight : weights) transposed.push_back(flipped(weight));
    variable_list results = products_of(x, transposed, matmul);
    for (at::Tensor& result : results) result = shaped(result, shape);
    return results;
  }
};

}  // namespace

Matmul matmul_by_name(const std::string& name) {
  if (name == "mkl") return Matmul::kMkl;
  if (name == "onednn") return Matmul::kOneDnn;
  if (name == "amx") {
    if (util::has_matrix_unit()) return Matmul::kAmx;
    fail(ErrorKind::kUsage,
         "training.matmul = \"amx\" requires a matrix unit (AMX in bf16) that this process "
         "may use, but the machine has none; set \"auto\"");
  }
  if (name == "auto") return fastest_here();
  fail(ErrorKind::kUsage, "training.matmul must be auto, mkl, onednn or amx, but is \"", name, "\"");
}

const char* name_of(Matmul matmul) {
  return matmul == Matmul::kAmx ? "amx" : matmul == Matmul::kOneDnn ? "onednn" : "mkl";
}

at::Tensor autocast_operand(const at::Tensor& x) {
  const auto type = util::autocast_type(x.device());
  return type && x.is_floating_point() ? x.to(*type) : x;
}

at::Tensor linear(const at::Tensor& given, const at::Tensor& given_weight, Matmul matmul, bool recomputed,
                  Addend* addend) {
  const at::Tensor x = autocast_operand(given), weight = autocast_operand(given_weight);
  if (!computes_here(x, matmul)) return at::linear(x, weight);
  return weight_product(x, weight, {}, false, matmul, recomputed, /*leaves_bias=*/false, addend);
}

std::vector<at::Tensor> linears(const at::Tensor& given, const std::vector<at::Tensor>& given_weights,
                                Matmul matmul, bool recomputed) {
  const at::Tensor x = autocast_operand(given);
  std::vector<at::Tensor> weights, results;
  for (const at::Tensor& weight : given_weights) weights.push_back(autocast_operand(weight));
  if (!computes_here(x, matmul) || !(is_for_cuda(x) || multiplies_here(x, matmul))) {
    for (const at::Tensor& weight : weights) results.push_back(linear(x, weight, matmul, recomputed));
    return results;
  }
  const std::vector<at::Tensor> seen = seen_parameters(weights, x);
  results = ProductsOfOne::apply(x, at::TensorList(seen), Parameters{weights}, matmul, recomputed);
  if (recomputed) recompute_results<ProductsOfOne>(results[0]);
  return results;
}

at::Tensor transposed_linear(const at::Tensor& given, const at::Tensor& given_weight,
                             const std::optional<at::Tensor>& given_bias, Matmul matmul, bool recomputed,
                             bool leaves_bias, Addend* addend) {
  const at::Tensor x = autocast_operand(given), weight = autocast_operand(given_weight);
  const auto bias = given_bias ? std::optional(autocast_operand(*given_bias)) : std::nullopt;
  if (!computes_here(x, matmul)) {
    FSDP_CHECK(!leaves_bias);
    std::vector<int64_t> shape = x.sizes().vec();
    shape.back() = weight.size(1);
    const at::Tensor rows = x.reshape({-1, x.size(-1)});
    return (bias ? at::addmm(*bias, rows, weight) : at::mm(rows, weight)).view(shape);
  }
  return weight_product(x, weight, bias.value_or(at::Tensor()), true, matmul, recomputed, leaves_bias,
                        addend);
}

at::Tensor as_matrix(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}).contiguous(); }

at::Tensor shaped(const at::Tensor& product, at::IntArrayRef like) {
  if (like.size() == 2) return product;
  std::vector<int64_t> shape = like.vec();
  shape.back() = product.size(1);
  return at::_unsafe_view(product, shape);
}

at::Tensor product(const at::Tensor& a, const at::Tensor& b, Matmul matmul) {
  at::NoGradGuard no_grad;
  const bool is_here = is_for_cuda(a) ? product_choices(a.device()) != nullptr : computes_here(a, matmul);
  return is_here ? product_of(a, flipped(b), matmul) : at::mm(a, flipped(b));
}

void product_into(const at::Tensor& to, const at::Tensor& a, const at::Tensor& b, Matmul matmul) {
  at::NoGradGuard no_grad;
  at::Tensor c = to;
  if (multiplies_in_place(a, matmul)) {
    multiply_in_place(c, a, flipped(b), false, matmul);
  } else {
    c.copy_(product(a, b, matmul));
  }
}

void add_product(at::Tensor& sum, const at::Tensor& a, const at::Tensor& b, Matmul matmul) {
  at::NoGradGuard no_grad;
  if (multiplies_in_place(a, matmul)) {
    const bool adds = sum.defined();
    if (!adds) sum = at::empty({a.size(0), b.size(0)}, a.options().dtype(at::kFloat));
    multiply_in_place(sum, a, flipped(b), adds, matmul);
  } else if (const at::Tensor part = product(a, b, matmul); sum.defined()) {
    sum.add_(part);
  } else {
    sum = part.to(at::kFloat);
  }
}

}  // namespace fsdp::kernels
