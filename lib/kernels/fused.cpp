#include "kernels/fused.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

#include "kernels/cuda/kernels.h"
#include "kernels/row_kernels.h"
#include "util/error.h"

namespace fsdp::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::Variable;
using torch::autograd::variable_list;

at::Tensor rotated(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool back) {
  at::Tensor y = at::empty(x.sizes(), x.options());
  KernelsFor(x)->rotary({.x = x.data_ptr(),
                         .y = y.data_ptr(),
                         .cos = cos.data_ptr<float>(),
                         .sin = sin.data_ptr<float>(),
                         .rows = x.size(0) * x.size(1),
                         .tokens = x.size(1),
                         .heads = x.size(2),
                         .head_dim = x.size(3),
                         .back = back});
  return y;
}

class Rotary final : public Function<Rotary> {
 public:
  static Variable forward(AutogradContext* context, const Variable& x, const Variable& cos,
                          const Variable& sin) {
    context->save_for_backward({cos, sin});
    return rotated(x.contiguous(), cos, sin, false);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    return {rotated(gradients[0].contiguous(), saved[0], saved[1], true), {}, {}};
  }
};

}  // namespace

bool can_fuse(const at::Tensor& x) {
  const bool has_kernels =
      x.is_cpu() || x.is_meta() || (x.is_cuda() && cuda::row_kernels(Element::kFloat) != nullptr);
  return has_kernels && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16);
}

at::Tensor rotary(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  FSDP_CHECK(can_fuse(x) && x.dim() == 4 && x.size(3) % 2 == 0 && cos.scalar_type() == at::kFloat &&
             sin.scalar_type() == at::kFloat && cos.is_contiguous() && sin.is_contiguous() &&
             cos.size(0) >= x.size(1) && cos.size(1) == x.size(3));
  return Rotary::apply(x, cos, sin);
}

}  // namespace fsdp::kernels
