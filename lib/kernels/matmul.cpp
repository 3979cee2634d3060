#include "kernels/matmul.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>

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

bool goes_to_onednn(const at::Tensor& x, Matmul matmul) {
  return matmul == Matmul::kOneDnn && x.is_cpu() && x.scalar_type() == at::kFloat && x.numel() > 0;
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

/// y = x W^T with W = weight or, where `transposed`, its transpose.
class OneDnnLinear final : public Function<OneDnnLinear> {
 public:
  static Variable forward(AutogradContext* context, const Variable& x, const Variable& weight,
                          const std::optional<at::Tensor>& bias, bool transposed) {
    context->save_for_backward({x, weight});
    context->saved_data["transposed"] = transposed;
    context->saved_data["has_bias"] = bias.has_value();
    return onednn_product(x, transposed ? weight.t() : weight, bias);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1];
    const bool transposed = context->saved_data["transposed"].toBool();
    const at::Tensor dy = gradients[0].reshape({-1, gradients[0].size(-1)});
    at::Tensor dx, dweight, dbias;
    if (context->needs_input_grad(0)) {
      dx = onednn_product(dy, transposed ? weight : weight.t(), std::nullopt).view(x.sizes());
    }
    if (context->needs_input_grad(1)) {
      const at::Tensor rows = x.reshape({-1, x.size(-1)});
      dweight = transposed ? onednn_product(rows.t(), dy.t(), std::nullopt)
                           : onednn_product(dy.t(), rows.t(), std::nullopt);
    }
    if (context->saved_data["has_bias"].toBool() && context->needs_input_grad(2)) dbias = dy.sum(0);
    return {dx, dweight, dbias, {}};
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
  if (!goes_to_onednn(x, matmul)) return at::linear(x, weight);
  return OneDnnLinear::apply(x, weight, std::optional<at::Tensor>(), false);
}

at::Tensor transposed_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                             Matmul matmul) {
  if (!goes_to_onednn(x, matmul)) return at::addmm(bias, x, weight);
  return OneDnnLinear::apply(x, weight, std::optional<at::Tensor>(bias), true);
}

at::Tensor product(const at::Tensor& a, const at::Tensor& b, Matmul matmul) {
  at::NoGradGuard no_grad;
  return goes_to_onednn(a, matmul) ? onednn_product(a, b, std::nullopt) : at::mm(a, b.t());
}

}  // namespace fsdp::kernels
