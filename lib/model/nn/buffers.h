#pragma once

// The buffers of a module that belong to its state.

#include <torch/nn/module.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

namespace fsdp::nn {

/// Base of modules whose own buffers (not those of their children) follow from their options, such as tables
/// of angles. State dicts and checkpoints leave these out. PyTorch's register_buffer() has persistent = false
/// for it, libtorch's has nothing.
class ComputedBuffers {
 protected:
  ~ComputedBuffers() = default;
};

/// Returns all other buffers below `root`, in the order of the modules. A buffer that several modules share
/// has the first of its names.
inline std::vector<std::pair<std::string, at::Tensor>> persistent_buffers(const torch::nn::Module& root) {
  std::vector<std::pair<std::string, at::Tensor>> buffers;
  std::set<const void*> seen;
  const auto leave_out = [&seen](const torch::nn::Module& module) {
    if (dynamic_cast<const ComputedBuffers*>(&module) == nullptr) return;
    for (const at::Tensor& buffer : module.buffers(/*recurse=*/false))
      seen.insert(buffer.unsafeGetTensorImpl());
  };
  leave_out(root);
  for (const auto& module : root.modules(/*include_self=*/false)) leave_out(*module);
  for (const auto& buffer : root.named_buffers()) {
    if (!seen.insert(buffer.value().unsafeGetTensorImpl()).second) continue;
    buffers.emplace_back(buffer.key(), buffer.value());
  }
  return buffers;
}

}  // namespace fsdp::nn
