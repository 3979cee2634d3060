#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include "kernels/fused.h"
#include "kernels/row_loops.h"
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
    for_rows(g.numel(), 1, [&](int64_t first, int64_t count) {
      loops_of(g).swiglu(row_of(g, first, 1), row_of(u, first, 1), row_of(y, first, 1), count);
    });
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &g = saved[0], &u = saved[1];
    const at::Tensor dy = gradients[0].contiguous();
    at::Tensor dg = at::empty_like(g), du = at::empty_like(u);
    for_rows(g.numel(), 1, [&](int64_t first, int64_t count) {
      loops_of(g).swiglu_backward(row_of(dy, first, 1), row_of(g, first, 1), row_of(u, first, 1),
                                  row_of(dg, first, 1), row_of(du, first, 1), count);
    });
    return {dg, du};
  }
};

class BiasGelu final : public Function<BiasGelu> {
 public:
  static Variable forward(AutogradContext* context, const Variable& given, const Variable& bias) {
    const at::Tensor x = given.contiguous();
    at::Tensor y = at::empty_like(x);
    const int64_t width = bias.size(0);
    for_rows(rows_of(x), width, [&](int64_t first, int64_t rows) {
      loops_of(x).bias_gelu({.x = row_of(x, first, width),
                             .bias = bias.data_ptr(),
                             .y = row_of(y, first, width),
                             .rows = rows,
                             .width = width});
    });
    context->save_for_backward({x, bias});
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &bias = saved[1];
    const at::Tensor dy = gradients[0].contiguous();
    at::Tensor dx = at::empty_like(x);
    const int64_t width = bias.size(0);
    const at::Tensor dbias =
        sums_of_rows({rows_of(x), width}, 1, [&](int64_t first, int64_t rows, float* sums) {
          loops_of(x).bias_gelu_backward({.dy = row_of(dy, first, width),
                                          .x = row_of(x, first, width),
                                          .bias = bias.data_ptr(),
                                          .dx = row_of(dx, first, width),
                                          .dbias = sums,
                                          .rows = rows,
                                          .width = width});
        });
    return {dx, context->needs_input_grad(1) ? gradient_from(dbias[0], bias) : at::Tensor()};
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
