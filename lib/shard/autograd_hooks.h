#pragma once

// Where the engine hears of backward. A stage's backward begins when the gradient of its output is there (a
// hook on the output) and has ended when the gradient of its input is (an identity function on the input,
// whose backward autograd runs after the stage's gradients have accumulated: accumulation goes before
// everything else that is ready).

#include <ATen/core/Tensor.h>

#include <functional>

namespace fsdp::shard {

/// Returns the input; in backward calls `ended` when its gradient has come. The input must require a
/// gradient.
at::Tensor when_backward_ends(const at::Tensor& input, std::function<void()> ended);

/// Calls `begins` in backward, before the gradient of `output` flows on. The output must require a gradient.
void when_backward_begins(const at::Tensor& output, std::function<void()> begins);

/// To be called from within a backward pass: runs `ended` when the whole pass is over. An exception of it
/// reaches the caller of backward(). When backward itself fails, `ended` may never run.
void when_whole_backward_ends(std::function<void()> ended);

}  // namespace fsdp::shard
