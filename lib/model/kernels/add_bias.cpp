#include <ATen/TensorOperators.h>

#include "base/util/error.h"
#include "model/kernels/below_autograd.h"
#include "model/kernels/fused.h"
#include "model/kernels/gradient_sink.h"
#include "model/kernels/reduce.h"

namespace fsdp::kernels {
namespace {

class AddBias final : public torch::autograd::Function<AddBias> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor&,
                            const Parameters& parameters) {
    const BelowAutograd below;
    const at::Tensor& bias = parameters.tensors[0];
    context->save_for_backward({bias});
    return x + bias;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const BelowAutograd below;
    const at::Tensor bias = context->get_saved_variables()[0], dy = gradients[0].contiguous();
    if (!is_wanted(*context, 1, bias)) return {dy, {}, {}};
    return {dy, deliver(*context, 1, bias, gradient_of_bias(dy, bias)), {}};
  }
};

}  // namespace

at::Tensor add_bias(const at::Tensor& x, const at::Tensor& bias) {
  FSDP_CHECK(can_fuse(x) && bias.scalar_type() == x.scalar_type() && bias.dim() == 1 &&
             bias.size(0) == x.size(-1));
  return AddBias::apply(x, seen_parameter(bias, x), Parameters{{bias}});
}

}  // namespace fsdp::kernels
