#pragma once

// SavedTensorScope decides, in a part of the forward pass, what becomes of the tensors that autograd saves.
//
// libtorch asks its engine for the hooks of every tensor that it saves
// (torch::autograd::Engine::get_default_saved_variable_hooks()). Python's engine has the answers of
// torch.autograd.graph.saved_tensors_hooks; libtorch's own has none. So the first scope of a process replaces
// libtorch's engine by one that asks the scope.

#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <functional>
#include <memory>

namespace fsdp::util {

/// During the object's lifetime, autograd calls `hooks` for each tensor that it saves on this thread, and its
/// result in place of keeping the tensor. Inner scopes replace outer ones.
///
/// A tensor that such hooks return in backward equals the saved one, but is not the same object: a parameter
/// has lost its hooks, for instance.
class SavedTensorScope {
 public:
  using Hooks = std::function<std::unique_ptr<torch::autograd::SavedVariableHooks>()>;

  /// Throws Error(kUsage) in a process with another engine, such as Python's.
  explicit SavedTensorScope(Hooks hooks);
  ~SavedTensorScope();
  SavedTensorScope(const SavedTensorScope&) = delete;
  SavedTensorScope& operator=(const SavedTensorScope&) = delete;

 private:
  friend struct SavedTensorHooks;

  Hooks hooks_;
  SavedTensorScope* outer_;
};

}  // namespace fsdp::util
