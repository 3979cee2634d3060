#pragma once

// Results that backward computes again instead of keeping them.
//
// An autograd function F whose results follow from what it keeps marks them with recompute_results<F>(). A
// function that needs such a result in its own backward then keeps no tensor: save_operands() remembers who made
// it, and operands_of() has it computed again. The results are equal bit for bit, because the same kernel gets the
// same operands, and exist from their first use in backward to their last. Chains work: what F keeps may itself be
// a result that is computed again.
//
// F computes with the parameters that are gathered at that moment. So a result may not be used outside of the
// stage whose parameters it needs; keep_result() ends that.

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/custom_function.h>

#include <functional>
#include <initializer_list>
#include <optional>
#include <vector>

namespace fsdp::kernels {

/// One tensor that a function is given and wants to have in backward.
struct Operand {
  size_t slot;              ///< its place among the saved tensors
  const at::Tensor& given;  ///< as the function got it
};

/// context.save_for_backward(), except operands that are computed again.
void save_operands(torch::autograd::AutogradContext& context, std::vector<at::Tensor> saved,
                   std::initializer_list<Operand> operands);

/// Whether a function runs its backward, after which it needs no operand any more, or its forward again.
enum class OperandUse { kBackward, kForwardAgain };

/// The saved tensors. Operands that are computed again have the shape in which they were given.
///
/// `gradient`: that of the function's only operand that is computed again, if it is already known. The function which
/// made that operand may then compute its own gradients in the same pass (gradients_with_again()).
std::vector<at::Tensor> operands_of(torch::autograd::AutogradContext& context,
                                    OperandUse use = OperandUse::kBackward, const at::Tensor& gradient = {});

/// Whether operands_of() computes the operand in this slot again.
bool is_computed_again(torch::autograd::AutogradContext& context, size_t slot);

/// Whether backward computes x again.
bool is_recomputed(const at::Tensor& x);

/// Computes all results of a function, in their order. `gradient` may be undefined.
using MakeAgain = std::function<std::vector<at::Tensor>(const at::Tensor& gradient)>;
/// `make` computes the results of the function that made `output`.
void recompute_results_by(const at::Tensor& output, MakeAgain make);
/// Such a function, with this context, needs `output` itself in that slot, which it has left undefined.
void save_own_result(torch::autograd::AutogradContext& context, size_t slot, const at::Tensor& output);

/// recompute_results_by() F::again(context), if autograd records; where the result's gradient is known, by
/// F::again_with_gradients(context, gradient), if there is one.
template <typename F>
void recompute_results(const at::Tensor& output, std::optional<size_t> own_slot = std::nullopt) {
  using Node = torch::autograd::CppNode<F>;
  auto* node = dynamic_cast<Node*>(output.grad_fn().get());
  if (node == nullptr) return;
  recompute_results_by(output, [node](const at::Tensor& gradient) {
    if constexpr (requires { F::again_with_gradients(&node->ctx_, gradient); }) {
      if (gradient.defined()) return F::again_with_gradients(&node->ctx_, gradient);
    }
    return F::again(&node->ctx_);
  });
  if (own_slot) save_own_result(node->ctx_, *own_slot, output);
}

/// What again_with_gradients() keeps for F's backward: F's own gradients for this gradient of its result.
void keep_gradients(torch::autograd::AutogradContext& context, const at::Tensor& gradient,
                    std::vector<at::Tensor> own);
/// Those, once, if backward has got the same gradient; else empty.
std::vector<at::Tensor> take_kept_gradients(torch::autograd::AutogradContext& context,
                                            const at::Tensor& gradient);

/// From now on, x is kept by functions that need it.
void keep_result(const at::Tensor& x);

/// `to`, a result of another function, equals `from`: who needs it may have `from` computed again.
void recompute_as(const at::Tensor& to, const at::Tensor& from);

}  // namespace fsdp::kernels
