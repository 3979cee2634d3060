#pragma once

// How the engine sees backward. A module's backward begins with the first gradient of its outputs (a hook on
// each). It has ended when the gradients of its inputs are computed: one identity function on all inputs,
// whose backward autograd runs after the module's gradients have accumulated, because accumulation precedes
// all other ready nodes.

#include <ATen/core/Tensor.h>

#include <functional>
#include <utility>
#include <vector>

namespace fsdp::shard {

/// The tensors that require a gradient.
std::vector<at::Tensor*> differentiable(const std::vector<at::Tensor*>& tensors);

/// Replaces the tensors, which must require gradients, by equal ones. In backward calls `ended` when the pass
/// has computed all gradients of these.
void when_backward_ends(const std::vector<at::Tensor*>& inputs, std::function<void()> ended);

inline at::Tensor when_backward_ends(at::Tensor input, std::function<void()> ended) {
  when_backward_ends(std::vector{&input}, std::move(ended));
  return input;
}

/// Calls `begins` in backward, before the gradient of `output` flows on. The output must require a gradient.
void when_backward_begins(const at::Tensor& output, std::function<void()> begins);

/// Whether the calling thread is in a backward pass.
bool is_in_backward_pass();

/// Must be called within a backward pass: runs `ended` when the whole pass is over. Its exceptions reach the
/// caller of backward(). If backward itself fails, `ended` may never run.
void when_whole_backward_ends(std::function<void()> ended);

}  // namespace fsdp::shard
