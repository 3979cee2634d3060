#include "kernels/matmul.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "kernels/block_product.h"
#include "kernels/fused.h"
#include "kernels/gradient_sink.h"
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
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return Matmul::kOneDnn;
#endif
  return Matmul::kMkl;
}

/// With fewer rows a weight is not packed often enough to be worth it.
constexpr int64_t kLeastRows = 64;

bool goes_to_onednn(const at::Tensor& x, Matmul matmul) {
  return matmul == Matmul::kOneDnn && x.is_cpu() && x.scalar_type() == at::kFloat && x.numel() > 0;
}

/// libtorch's product, whose gradient of the weight is computed here.
bool adds_to_weight_gradient(const at::Tensor& x, Matmul matmul) {
  return matmul == Matmul::kOneDnn && x.is_cpu() && x.scalar_type() == at::kBFloat16 && x.numel() > 0 &&
         has_small_products(at::kBFloat16);
}

/// Whether it is a product whose backward is written here; else autograd has it.
bool computes_here(const at::Tensor& x, Matmul matmul) {
  if (x.is_cuda()) return can_fuse(x) && x.numel() > 0;
  return goes_to_onednn(x, matmul) || adds_to_weight_gradient(x, matmul);
}

bool is_cpu_float(const at::Tensor& x) { return x.is_cpu() && x.scalar_type() == at::kFloat; }

/// a b^T + bias
at::Tensor onednn_product(const at::Tensor& a, const at::Tensor& b, const std::optional<at::Tensor>& bias) {
  using Operator =
      at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, std::string_view,
                 c10::List<std::optional<at::Scalar>>, std::optional<std::string_view>);
  static const auto linear_pointwise =
      c10::Dispatcher::singleton().findSchemaOrThrow("mkldnn::_linear_pointwise", "").typed<Operator>();
  return linear_pointwise.call(a, b, bias, "none", c10::List<std::optional<at::Scalar>>(), "");
}

/// a b. a: [N, K], b: [K, M], fp32
at::Tensor float_product(const at::Tensor& a, const at::Tensor& b) {
  if (a.size(0) < kLeastRows || !has_small_products(at::kFloat)) {
    return onednn_product(a, b.t(), std::nullopt);
  }
  at::Tensor product = at::empty({a.size(0), b.size(1)}, a.options());
  multiply_into(product, a, b, false);
  return product;
}

at::Tensor product_of(const at::Tensor& a, const at::Tensor& b) {
  return is_cpu_float(a) ? float_product(a, b) : at::mm(a, b);
}

/// sum += a b; an undefined sum is 0.
void add_product_of(at::Tensor& sum, const at::Tensor& a, const at::Tensor& b) {
  if (!sum.defined()) {
    sum = product_of(a, b);
  } else if (!is_cpu_float(a)) {
    sum.addmm_(a, b);
  } else if (a.size(0) < kLeastRows) {
    sum.add_(float_product(a, b));
  } else {
    multiply_into(sum, a, b, true);
  }
}

/// c = a b, or is added to, on a GPU: c is fp32 or has the type of a and b.
void multiply_on_gpu(at::Tensor& c, const at::Tensor& a, const at::Tensor& b, bool adds) {
  if (c.scalar_type() == a.scalar_type()) {
    adds ? at::addmm_out(c, c, a, b) : at::mm_out(c, a, b);
  } else {
    adds ? at::addmm_out(c, c, a, b, c.scalar_type()) : at::mm_out(c, a, b, c.scalar_type());
  }
}

/// a b, undefined if the weight's sink has it.
at::Tensor weight_gradient(const at::Tensor& weight, const at::Tensor& a, const at::Tensor& b) {
  if (a.is_cuda()) {
    auto place = take_gradient_place(weight, at::kFloat);
    if (!place) place = take_gradient_place(weight, a.scalar_type());
    if (!place) return at::mm(a, b);
    multiply_on_gpu(place->memory, a, b, place->adds);
    return {};
  }
  if (has_small_products(a.scalar_type())) {
    if (auto place = take_gradient_place(weight, at::kFloat)) {
      multiply_into(place->memory, a, b, place->adds);
      return {};
    }
  }
  return product_of(a, b);
}

/// Gradients of several weights, of which each is a product with the same b.
class GradientsWith {
 public:
  explicit GradientsWith(const at::Tensor& b)
      : b_(b), waits_(b.is_cpu() && has_small_products(b.scalar_type())) {}

  /// As weight_gradient(), but what goes to a sink may be there only after finish().
  at::Tensor add(const at::Tensor& weight, const at::Tensor& a) {
    if (!waits_) return weight_gradient(weight, a, b_);
    const auto place = take_gradient_place(weight, at::kFloat);
    if (!place) return product_of(a, b_);
    // The same weight twice: what is added comes after what it is added to.
    for (const ProductOf& other : products_) {
      if (other.c.data_ptr() == place->memory.data_ptr()) finish();
    }
    products_.push_back({.c = place->memory, .a = a, .adds = place->adds});
    return {};
  }

  void finish() { multiply_all_into(std::exchange(products_, {}), b_); }

 private:
  const at::Tensor& b_;
  bool waits_;
  std::vector<ProductOf> products_;
};

/// y = x W + b with W = weight^T or, where `transposed`, the weight. x: [N, in]
class WeightProduct final : public Function<WeightProduct> {
 public:
  static Variable forward(AutogradContext* context, const Variable& given, const Variable& weight,
                          const std::optional<at::Tensor>& bias, bool transposed) {
    const at::Tensor x = given.contiguous(), w = transposed ? weight : weight.t();
    context->save_for_backward({x, weight, bias.value_or(at::Tensor())});
    context->saved_data["transposed"] = transposed;
    context->saved_data["has_bias"] = bias.has_value();
    if (!bias) return product_of(x, w);
    if (!is_cpu_float(x)) return at::addmm(*bias, x, w);
    if (x.size(0) < kLeastRows || !has_small_products(at::kFloat)) return onednn_product(x, w.t(), bias);
    at::Tensor y = bias->expand({x.size(0), w.size(1)}).contiguous();
    multiply_into(y, x, w, true);
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1];
    const bool transposed = context->saved_data["transposed"].toBool();
    const at::Tensor dy = gradients[0].contiguous();
    at::Tensor dx, dweight, dbias;
    if (context->needs_input_grad(0)) dx = product_of(dy, transposed ? weight.t() : weight);
    if (context->needs_input_grad(1)) {
      dweight = transposed ? weight_gradient(weight, x.t(), dy) : weight_gradient(weight, dy.t(), x);
    }
    if (context->saved_data["has_bias"].toBool() && context->needs_input_grad(2)) {
      dbias = gradient_of_bias(dy, saved[2]);
    }
    return {dx, dweight, dbias, {}};
  }
};

/// y_i = x W_i^T. x: [N, in]
class ProductsOfOne final : public Function<ProductsOfOne> {
 public:
  static variable_list forward(AutogradContext* context, const Variable& given, at::TensorList weights) {
    const at::Tensor x = given.contiguous();
    variable_list saved{x}, products;
    for (const at::Tensor& weight : weights) {
      saved.push_back(weight);
      products.push_back(product_of(x, weight.t()));
    }
    context->save_for_backward(std::move(saved));
    return products;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    variable_list results(saved.size());
    GradientsWith of_weights(saved[0]);
    for (size_t i = 1; i < saved.size(); ++i) {
      const at::Tensor dy = gradients[i - 1].contiguous();
      if (context->needs_input_grad(i)) results[i] = of_weights.add(saved[i], dy.t());
      if (context->needs_input_grad(0)) add_product_of(results[0], dy, saved[i]);
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
  if (name == "auto") return fastest_here();
  util::fail(util::ErrorKind::kUsage, "training.matmul: expected auto, mkl or onednn; found \"", name, "\"");
}

const char* name_of(Matmul matmul) { return matmul == Matmul::kOneDnn ? "onednn" : "mkl"; }

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, Matmul matmul) {
  if (!computes_here(x, matmul)) return at::linear(x, weight);
  return WeightProduct::apply(x.reshape({-1, x.size(-1)}), weight, std::optional<at::Tensor>(), false)
      .view(shape_with(x, weight.size(0)));
}

std::vector<at::Tensor> linears(const at::Tensor& x, const std::vector<at::Tensor>& weights, Matmul matmul) {
  std::vector<at::Tensor> results;
  if (!computes_here(x, matmul) || !(x.is_cuda() || has_small_products(x.scalar_type()))) {
    for (const at::Tensor& weight : weights) results.push_back(linear(x, weight, matmul));
    return results;
  }
  results = ProductsOfOne::apply(x.reshape({-1, x.size(-1)}), at::TensorList(weights));
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
  return WeightProduct::apply(x, weight, bias, true);
}

at::Tensor product(const at::Tensor& a, const at::Tensor& b, Matmul matmul) {
  at::NoGradGuard no_grad;
  return goes_to_onednn(a, matmul) ? float_product(a, b.t()) : at::mm(a, b.t());
}

void product_into(const at::Tensor& to, const at::Tensor& a, const at::Tensor& b, Matmul matmul) {
  at::NoGradGuard no_grad;
  if (a.is_cuda()) {
    at::Tensor c = to;
    at::mm_out(c, a, b.t());
  } else {
    to.copy_(product(a, b, matmul));
  }
}

void add_product(at::Tensor& sum, const at::Tensor& a, const at::Tensor& b, Matmul matmul) {
  at::NoGradGuard no_grad;
  if (a.is_cuda()) {
    const bool adds = sum.defined();
    if (!adds) sum = at::empty({a.size(0), b.size(0)}, a.options().dtype(at::kFloat));
    multiply_on_gpu(sum, a, b.t(), adds);
  } else if (const at::Tensor part = product(a, b, matmul); sum.defined()) {
    sum.add_(part);
  } else {
    sum = part.to(at::kFloat);
  }
}

}  // namespace fsdp::kernels
