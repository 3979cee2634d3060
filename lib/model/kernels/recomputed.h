#pragma once

// Results that backward computes again instead of keeping them.
//
// An autograd function F whose results can be computed from the tensors that it saves marks them with
// recompute_results<F>(). A function that needs such a result in its own backward then saves no tensor:
// save_operands() records the function that made it, and operands_of() has it computed again. The results are
// equal bit for bit, because the same kernel gets the same operands, and exist from their first use in
// backward to their last. Chains work: a tensor that F saves may itself be a result that is computed again.
//
// F computes with the parameters that are gathered at that moment. So a result must not be used outside of
// the stage whose parameters it needs; keep_result() ends the recomputation.

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/custom_function.h>

#include <functional>
#include <initializer_list>
#include <optional>
#include <vector>

namespace fsdp::kernels {

/// An operand of a function that its backward needs.
struct Operand {
  size_t slot;              ///< slot among the saved tensors
  const at::Tensor& given;  ///< operand as given to the function
};

/// Calls context.save_for_backward(), except for operands that are computed again.
void save_operands(torch::autograd::AutogradContext& context, std::vector<at::Tensor> saved,
                   std::initializer_list<Operand> operands);

/// Whether a function runs its backward, after which it needs no operand any more, or its forward again.
enum class OperandUse { kBackward, kForwardAgain };

/// Returns the saved tensors. Operands that are computed again have the shape in which they were given.
///
/// `gradient` is the gradient of the function's only operand that is computed again, if it is already known.
/// The function that made that operand may then compute its own gradients in the same pass
/// (again_with_gradients()).
std::vector<at::Tensor> operands_of(torch::autograd::AutogradContext& context,
                                    OperandUse use = OperandUse::kBackward, const at::Tensor& gradient = {});

/// Whether operands_of() computes the operand in this slot again.
bool is_computed_again(torch::autograd::AutogradContext& context, size_t slot);

/// Whether backward computes x again.
bool is_recomputed(const at::Tensor& x);

/// Computes all results of a function, in their order. `gradient` may be undefined.
using MakeAgain = std::function<std::vector<at::Tensor>(const at::Tensor& gradient)>;
/// Registers `make`, which computes the results of the function that made `output`.
void recompute_results_by(const at::Tensor& output, MakeAgain make);
/// Registers that such a function, with this context, needs `output` itself in that (undefined) slot.
void save_own_result(torch::autograd::AutogradContext& context, size_t slot, const at::Tensor& output);

/// Calls recompute_results_by() with F::again(context), if autograd records. If the result's gradient is
/// known, and F has it, F::again_with_gradients(context, gradient) computes the results.
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

/// Keeps F's own gradients, computed by again_with_gradients() from this gradient, for F's backward.
void keep_gradients(torch::autograd::AutogradContext& context, const at::Tensor& gradient,
                    std::vector<at::Tensor> own);
/// Returns these gradients, once, if backward has received the same gradient; otherwise nothing.
std::vector<at::Tensor> take_kept_gradients(torch::autograd::AutogradContext& context,
                                            const at::Tensor& gradient);

/// Makes functions that need x save it from now on.
void keep_result(const at::Tensor& x);

/// Registers that `to`, a result of another function, equals `from`, which may be recomputed in its place.
void recompute_as(const at::Tensor& to, const at::Tensor& from);

}  // namespace fsdp::kernels
