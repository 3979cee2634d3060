#include "kernels/matmul.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>

#include "kernels/block_product.h"
#include "kernels/gradient_sink.h"
#include "kernels/reduce.h"
#include "kernels/row_loops.h"
#include "util/error.h"

namespace fsdp::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::Variable;
using torch::autograd::variable_list;

Matmul fastest_here() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && !__builtin_cpu_is("intel")) return Matmul::kOneDnn;
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
  return a.scalar_type() == at::kFloat ? float_product(a, b) : at::mm(a, b);
}

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
    if (x.scalar_type() != at::kFloat) return at::addmm(*bias, x, w);
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
      dbias = gradient_from(sum_of_rows(dy), saved[2]);
    }
    return {dx, dweight, dbias, {}};
  }

 private:
  /// a b, undefined if the weight's sink has it.
  static at::Tensor weight_gradient(const at::Tensor& weight, const at::Tensor& a, const at::Tensor& b) {
    if (has_small_products(a.scalar_type())) {
      if (auto place = take_gradient_place(weight, at::kFloat)) {
        multiply_into(place->memory, a, b, place->adds);
        return {};
      }
    }
    return product_of(a, b);
  }
};

}  // namespace

Matmul matmul_by_name(const std::string& name) {
  if (name == "mkl") return Matmul::kMkl;
  if (name == "onednn") return Matmul::kOneDnn;
  if (name == "auto") return fastest_here();
  util::fail(util::ErrorKind::kUsage, "training.matmul: expected auto, mkl or onednn; found \"", name, "\"");
}

const char* name_of(Matmul matmul) { return matmul == Matmul::kOneDnn ? "onednn" : "mkl"; }

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, Matmul matmul) {
  if (!goes_to_onednn(x, matmul) && !adds_to_weight_gradient(x, matmul)) return at::linear(x, weight);
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = weight.size(0);
  return WeightProduct::apply(x.reshape({-1, x.size(-1)}), weight, std::optional<at::Tensor>(), false)
      .view(shape);
}

at::Tensor transposed_linear(const at::Tensor& x, const at::Tensor& weight,
                             const std::optional<at::Tensor>& bias, Matmul matmul) {
  if (!goes_to_onednn(x, matmul) && !adds_to_weight_gradient(x, matmul)) {
    return bias ? at::addmm(*bias, x, weight) : at::mm(x, weight);
  }
  return WeightProduct::apply(x, weight, bias, true);
}

at::Tensor product(const at::Tensor& a, const at::Tensor& b, Matmul matmul) {
  at::NoGradGuard no_grad;
  return goes_to_onednn(a, matmul) ? float_product(a, b.t()) : at::mm(a, b.t());
}

}  // namespace fsdp::kernels
