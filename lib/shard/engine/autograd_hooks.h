#pragma once

// The engine's view of backward. A module's backward begins with the first gradient of its outputs, each of
// which has a hook. It has ended when the gradients of its inputs are computed. One identity function on all
// inputs shows that: autograd runs its backward after the module's gradients have accumulated, because
// accumulation precedes all other ready nodes.

#include <ATen/core/Tensor.h>

#include <functional>
#include <utility>
#include <vector>

namespace fsdp::shard {

/// The tensors that require a gradient.
std::vector<at::Tensor*> differentiable(const std::vector<at::Tensor*>& tensors);

/// Replaces the tensors by equal ones. Backward calls `ended` when it has computed all gradients of the new
/// tensors. Requires: tensors that require gradients.
void when_backward_ends(const std::vector<at::Tensor*>& inputs, std::function<void()> ended);

inline at::Tensor when_backward_ends(at::Tensor input, std::function<void()> ended) {
  when_backward_ends(std::vector{&input}, std::move(ended));
  return input;
}

/// Calls `begins` in backward, before the gradient of `output` flows on. The output must require a gradient.
void when_backward_begins(const at::Tensor& output, std::function<void()> begins);

/// Whether the calling thread is in a backward pass.
bool is_in_backward_pass();

/// Runs `ended` when the whole backward pass is over. Exceptions of `ended` reach the caller of backward().
/// If backward itself fails, `ended` may never run. Requires: a call within a backward pass.
void when_whole_backward_ends(std::function<void()> ended);

}  // namespace fsdp::shard
