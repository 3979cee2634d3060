#pragma once

// CallHook and Hookable: what sees the calls of a module, and what it can be attached to (model/nn/hooked.h,
// model/nn/stage.h). Sharding knows modules by this header alone, without libtorch's own, which take the
// compiler seconds.

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace fsdp::nn {

/// Tensors of a call, which hooks may read or replace.
using CallTensors = std::vector<at::Tensor*>;

class Stage;

/// Sees the calls of a module. A hook implements before() and after(), or for stages alone (model/nn/stage.h)
/// around(). Not collective by itself.
class CallHook {
 public:
  class Next;  ///< the rest of a stage's call
  virtual ~CallHook() = default;

  /// Runs before forward(). The result lives until forward() has returned. Throws Error(kUsage) in a hook
  /// that implements around() and was attached to a module that is no stage.
  virtual std::shared_ptr<void> before(const CallTensors& inputs);
  /// Runs after forward(), unless it threw.
  virtual void after(const CallTensors& /*outputs*/) {}
  /// Returns what `next(input)` returns, or a tensor of equal value. The default runs before() and after().
  virtual at::Tensor around(Stage& stage, const at::Tensor& input, const Next& next);
};

/// A module that hooks can be attached to.
class Hookable {
 public:
  virtual ~Hookable() = default;
  /// The kind of module ("block", "TransformerEncoderLayer"), for wrap policies and messages.
  virtual std::string type_name() const = 0;
  /// Attaches a hook inside those attached before.
  virtual void attach(std::shared_ptr<CallHook> hook) = 0;
  /// Puts `hook` in the place of an attached one; null detaches that one. No effect if it is not attached.
  virtual void replace(const CallHook& attached, std::shared_ptr<CallHook> hook) = 0;
  virtual void detach_hooks() = 0;
  /// The module that has the hooks: another one if this is only a front of it.
  virtual Hookable& hooked() { return *this; }
};

}  // namespace fsdp::nn
