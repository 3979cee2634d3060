#include "kernels/fused.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

#include "kernels/row_loops.h"
#include "util/error.h"

namespace fsdp::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::Variable;
using torch::autograd::variable_list;

at::Tensor rotated(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool back) {
  at::Tensor y = at::empty(x.sizes(), x.options());
  const int64_t width = x.size(2) * x.size(3);
  for_rows(x.size(0) * x.size(1), width, [&](int64_t first, int64_t rows) {
    loops_of(x).rotary({.x = row_of(x, first, width),
                        .y = row_of(y, first, width),
                        .cos = cos.data_ptr<float>(),
                        .sin = sin.data_ptr<float>(),
                        .first = first,
                        .rows = rows,
                        .tokens = x.size(1),
                        .heads = x.size(2),
                        .head_dim = x.size(3),
                        .back = back});
  });
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
  return x.is_cpu() && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16);
}

at::Tensor rotary(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  FSDP_CHECK(can_fuse(x) && x.dim() == 4 && x.size(3) % 2 == 0 && cos.scalar_type() == at::kFloat &&
             sin.scalar_type() == at::kFloat && cos.is_contiguous() && sin.is_contiguous() &&
             cos.size(0) >= x.size(1) && cos.size(1) == x.size(3));
  return Rotary::apply(x, cos, sin);
}

}  // namespace fsdp::kernels
