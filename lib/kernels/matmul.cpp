#include "kernels/matmul.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "kernels/meta.h"
#include "kernels/products.h"
#include "kernels/reduce.h"
#include "util/error.h"
#include "util/matrix_units.h"

namespace fsdp::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::Variable;
using torch::autograd::variable_list;

/// Before anybody's first product.
[[maybe_unused]] const bool checked_tiles = util::keep_onednn_from_broken_tiles();

Matmul fastest_here() {
  if (util::has_matrix_unit()) return Matmul::kAmx;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return Matmul::kOneDnn;
#endif
  return Matmul::kMkl;
}

/// y = x W + b with W = weight^T or, where `transposed`, the weight. x: [N, in]
class WeightProduct final : public Function<WeightProduct> {
 public:
  static Variable forward(AutogradContext* context, const Variable& given, const Variable& weight,
                          const std::optional<at::Tensor>& bias, bool transposed, Matmul matmul) {
    const at::Tensor x = given.contiguous(), w = transposed ? weight : weight.t();
    context->save_for_backward({x, weight, bias.value_or(at::Tensor())});
    context->saved_data["transposed"] = transposed;
    context->saved_data["has_bias"] = bias.has_value();
    context->saved_data["matmul"] = static_cast<int64_t>(matmul);
    return bias ? biased_product(x, w, *bias, matmul) : product_of(x, w, matmul);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1];
    const bool transposed = context->saved_data["transposed"].toBool();
    const auto matmul = static_cast<Matmul>(context->saved_data["matmul"].toInt());
    const at::Tensor dy = gradients[0].contiguous();
    at::Tensor dx, dweight, dbias;
    if (context->needs_input_grad(0)) dx = product_of(dy, transposed ? weight.t() : weight, matmul);
    if (context->needs_input_grad(1)) {
      dweight = transposed ? weight_gradient(weight, x.t(), dy, matmul)
                           : weight_gradient(weight, dy.t(), x, matmul);
    }
    if (context->saved_data["has_bias"].toBool() && context->needs_input_grad(2)) {
      dbias = gradient_of_bias(dy, saved[2]);
    }
    return {dx, dweight, dbias, {}, {}};
  }
};

/// y_i = x W_i^T. x: [N, in]
class ProductsOfOne final : public Function<ProductsOfOne> {
 public:
  static variable_list forward(AutogradContext* context, const Variable& given, at::TensorList weights,
                               Matmul matmul) {
    const at::Tensor x = given.contiguous();
    variable_list saved{x};
    std::vector<at::Tensor> transposed;
    for (const at::Tensor& weight : weights) {
      saved.push_back(weight);
      transposed.push_back(weight.t());
    }
    context->save_for_backward(std::move(saved));
    context->saved_data["matmul"] = static_cast<int64_t>(matmul);
    return products_of(x, transposed, matmul);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const auto matmul = static_cast<Matmul>(context->saved_data["matmul"].toInt());
    variable_list results(saved.size() + 1);
    GradientsWith of_weights(saved[0], matmul);
    for (size_t i = 1; i < saved.size(); ++i) {
      const at::Tensor dy = gradients[i - 1].contiguous();
      if (context->needs_input_grad(i)) results[i] = of_weights.add(saved[i], dy.t());
      if (context->needs_input_grad(0)) add_product_of(results[0], dy, saved[i], matmul);
    }
    of_weights.finish();
    return results;
  }
};

/// Leading dimensions of x with a last one of `width`.
std::vector<int64_t> shape_with(const at::Tensor& x, int64_t width) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = width;
  return shape;
}

}  // namespace

Matmul matmul_by_name(const std::string& name) {
  if (name == "mkl") return Matmul::kMkl;
  if (name == "onednn") return Matmul::kOneDnn;
  if (name == "amx") {
    if (util::has_matrix_unit()) return Matmul::kAmx;
    util::fail(
        util::ErrorKind::kUsage,
        "training.matmul: expected a library that this machine has, found \"amx\", for which it has no "
        "matrix unit (AMX in bf16) that this process may use; set \"auto\"");
  }
  if (name == "auto") return fastest_here();
  util::fail(util::ErrorKind::kUsage, "training.matmul: expected auto, mkl, onednn or amx; found \"", name,
             "\"");
}

const char* name_of(Matmul matmul) {
  return matmul == Matmul::kAmx ? "amx" : matmul == Matmul::kOneDnn ? "onednn" : "mkl";
}

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, Matmul matmul) {
  if (!computes_here(x, matmul)) return at::linear(x, weight);
  return WeightProduct::apply(x.reshape({-1, x.size(-1)}), weight, std::optional<at::Tensor>(), false, matmul)
      .view(shape_with(x, weight.size(0)));
}

std::vector<at::Tensor> linears(const at::Tensor& x, const std::vector<at::Tensor>& weights, Matmul matmul) {
  std::vector<at::Tensor> results;
  if (!computes_here(x, matmul) || !(is_for_cuda(x) || multiplies_here(x, matmul))) {
    for (const at::Tensor& weight : weights) results.push_back(linear(x, weight, matmul));
    return results;
  }
  results = ProductsOfOne::apply(x.reshape({-1, x.size(-1)}), at::TensorList(weights), matmul);
  for (size_t i = 0; i < weights.size(); ++i) {
    results[i] = results[i].view(shape_with(x, weights[i].size(0)));
  }
  return results;
}

at::Tensor transposed_linear(const at::Tensor& x, const at::Tensor& weight,
                             const std::optional<at::Tensor>& bias, Matmul matmul) {
  if (!computes_here(x, matmul)) {
    return bias ? at::addmm(*bias, x, weight) : at::mm(x, weight);
  }
  return WeightProduct::apply(x, weight, bias, true, matmul);
}

at::Tensor product(const at::Tensor& a, const at::Tensor& b, Matmul matmul) {
  at::NoGradGuard no_grad;
  return !is_for_cuda(a) && computes_here(a, matmul) ? product_of(a, b.t(), matmul) : at::mm(a, b.t());
}

void product_into(const at::Tensor& to, const at::Tensor& a, const at::Tensor& b, Matmul matmul) {
  at::NoGradGuard no_grad;
  at::Tensor c = to;
  if (multiplies_in_place(a, matmul)) {
    multiply_in_place(c, a, b.t(), false, matmul);
  } else {
    c.copy_(product(a, b, matmul));
  }
}

void add_product(at::Tensor& sum, const at::Tensor& a, const at::Tensor& b, Matmul matmul) {
  at::NoGradGuard no_grad;
  if (multiplies_in_place(a, matmul)) {
    const bool adds = sum.defined();
    if (!adds) sum = at::empty({a.size(0), b.size(0)}, a.options().dtype(at::kFloat));
    multiply_in_place(sum, a, b.t(), adds, matmul);
  } else if (const at::Tensor part = product(a, b, matmul); sum.defined()) {
    sum.add_(part);
  } else {
    sum = part.to(at::kFloat);
  }
}

}  // namespace fsdp::kernels
