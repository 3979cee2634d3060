#pragma once

// The optimization barrier of PyTorch/XLA, as an operation of its own. In XLA it keeps the compiler from
// fusing or moving operations across it. Here autograd chooses the order of backward from its graph, and the
// barrier is one node for several tensors: no gradient passes it before all have arrived.
//
// Every FSDP unit is such a fence for the gradients of its inputs already: its gradients are reduced when its
// own backward has ended, never together with another unit's.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <vector>

namespace fsdp::shard {

/// Returns equal tensors, in the same order. Backward passes their gradients on together, when all are
/// complete.
std::vector<at::Tensor> optimization_barrier(std::vector<at::Tensor> tensors);

/// Puts a barrier on the inputs of each call of the module, and one on its outputs. Its backward begins when
/// the gradients of all its outputs are complete, and backward goes on to earlier modules when the gradients
/// of all its inputs are. The module is a Stage or Hooked. Recomputation may be attached before or after.
/// Throws Error(kUsage) for a module whose calls hooks cannot see.
void optimization_barrier(torch::nn::Module& module);

}  // namespace fsdp::shard
