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

class SwiGlu final : public Function<SwiGlu> {
 public:
  static Variable forward(AutogradContext* context, const Variable& gate, const Variable& up) {
    const at::Tensor g = gate.contiguous(), u = up.contiguous();
    context->save_for_backward({g, u});
    at::Tensor y = at::empty_like(g);
    KernelsFor(g)->swiglu(g.data_ptr(), u.data_ptr(), y.data_ptr(), g.numel());
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &g = saved[0], &u = saved[1];
    const at::Tensor dy = gradients[0].contiguous();
    at::Tensor dg = at::empty_like(g), du = at::empty_like(u);
    KernelsFor(g)->swiglu_backward({.dy = dy.data_ptr(),
                                    .gate = g.data_ptr(),
                                    .up = u.data_ptr(),
                                    .dgate = dg.data_ptr(),
                                    .dup = du.data_ptr(),
                                    .n = g.numel()});
    return {dg, du};
  }
};

class BiasGelu final : public Function<BiasGelu> {
 public:
  static Variable forward(AutogradContext* context, const Variable& given, const Variable& bias) {
    const at::Tensor x = given.contiguous();
    at::Tensor y = at::empty_like(x);
    KernelsFor(x)->bias_gelu({.x = x.data_ptr(),
                              .bias = bias.data_ptr(),
                              .y = y.data_ptr(),
                              .rows = rows_of(x),
                              .width = bias.size(0)});
    context->save_for_backward({x, bias});
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &bias = saved[1];
    const at::Tensor dy = gradients[0].contiguous();
    at::Tensor dx = at::empty_like(x);
    const ParameterSums sums(x, 1);
    KernelsFor(x)->bias_gelu_backward({.dy = dy.data_ptr(),
                                       .x = x.data_ptr(),
                                       .bias = bias.data_ptr(),
                                       .dx = dx.data_ptr(),
                                       .dbias = sums.of(0),
                                       .rows = rows_of(x),
                                       .width = bias.size(0)},
                                      sums.parts());
    return {dx, context->needs_input_grad(1) ? sums.gradient(0, bias) : at::Tensor()};
  }
};

}  // namespace

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  FSDP_CHECK(can_fuse(gate) && up.scalar_type() == gate.scalar_type() && up.sizes() == gate.sizes());
  return SwiGlu::apply(gate, up);
}

at::Tensor bias_gelu(const at::Tensor& x, const at::Tensor& bias) {
  FSDP_CHECK(can_fuse(x) && bias.scalar_type() == x.scalar_type() && bias.dim() == 1 &&
             bias.size(0) == x.size(-1) && bias.is_contiguous());
  return BiasGelu::apply(x, bias);
}

}  // namespace fsdp::kernels
