#pragma once

// How the engine sees backward. A module's backward begins when the first gradient of its outputs is there (a
// hook on each) and has ended when the gradients of its inputs are (one identity function on all of them, whose
// backward autograd runs after the module's gradients have accumulated: accumulation goes before everything
// else that is ready).

#include <ATen/core/Tensor.h>

#include <functional>
#include <utility>
#include <vector>

namespace fsdp::shard {

/// Replaces the tensors, which must require gradients, by equal ones; in backward calls `ended` when all
/// gradients of these have come that the pass computes.
void when_backward_ends(const std::vector<at::Tensor*>& inputs, std::function<void()> ended);

inline at::Tensor when_backward_ends(at::Tensor input, std::function<void()> ended) {
  when_backward_ends(std::vector{&input}, std::move(ended));
  return input;
}

/// Calls `begins` in backward, before the gradient of `output` flows on. The output must require a gradient.
void when_backward_begins(const at::Tensor& output, std::function<void()> begins);

/// To be called from within a backward pass: runs `ended` when the whole pass is over. An exception of it
/// reaches the caller of backward(). When backward itself fails, `ended` may never run.
void when_whole_backward_ends(std::function<void()> ended);

}  // namespace fsdp::shard
