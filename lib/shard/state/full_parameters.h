#pragma once

// FullParameters: a scope outside of forward and backward in which the module's parameters are whole, for
// reading or changing them, in the type of the shards (fp32, unless fsdp.param_storage says otherwise). The
// counterpart of PyTorch's FSDP.summon_full_params.
//
//   {
//     FullParameters full(*engine, {.writeback = true});
//     at::NoGradGuard no_grad;
//     model->weight.mul_(0.5);
//   }  // the shards have the new values
//
// For copies of the parameters see shard/state/state_dict.h.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "shard/engine/engine.h"

namespace fsdp::shard {

/// How FullParameters shows the parameters.
struct FullParametersOptions {
  /// Whether each rank copies its range of the parameters to its shard on closing. Every rank must have
  /// written the same values. Unlike in PyTorch the default is off, so rank0_only needs no second option.
  bool writeback = false;
  /// Whether ranks other than 0 take part in the gathers and keep nothing. Their parameters must not be read.
  /// Excludes writeback, because the ranges of the other ranks would be lost.
  bool rank0_only = false;
  /// Whether the full parameters are in host memory.
  bool to_host = false;
  /// Patterns for names of units (base/util/text.h); empty: all units. The parameters of other units must not
  /// be read.
  std::vector<std::string> units = {};
};

/// While it is open, the module's parameters are whole, in the type of the shards, with their original
/// shapes, in separate memory under every strategy: without writeback, changes are discarded. The memory is
/// not that of the engine's pool. Gradients are not touched, and no forward or backward may run.
///
/// A parameter whose data the user replaced (set_data, Module::to()) is written back too if it has the right
/// shape and a floating type.
class FullParameters {
 public:
  /// Gathers the units. Throws Error(kUsage) when the engine is in use (Engine::require_rest()), for
  /// rank0_only with writeback, and for a pattern that matches no unit, and leaves the parameters as they
  /// were. Requires: the same options on all ranks, and an engine that outlives the object. Collective,
  /// between steps.
  explicit FullParameters(Engine& engine, FullParametersOptions options = {});

  /// Calls close(), without writeback if the stack is being unwound by an exception. Logs errors.
  ~FullParameters();
  FullParameters(const FullParameters&) = delete;
  FullParameters& operator=(const FullParameters&) = delete;

  /// Writes back, if the options say so, and returns the parameters to the engine; no effect when closed.
  /// Throws Error(kUsage) for replaced data that does not fit: nothing is written back then, but the
  /// parameters are returned to the engine. Not collective.
  void close();

  bool is_open() const { return is_open_; }
  /// Memory of the full parameters on this rank.
  int64_t bytes() const;

 private:
  struct ShownUnit {
    Unit* unit;
    at::Tensor whole;                 ///< [unsharded_numel] in the type of the shard
    std::vector<at::Tensor> at_rest;  ///< the parameters' data while closed
  };
  static std::vector<std::string> take_in_replaced_data(const ShownUnit& shown);

  Engine& engine_;
  FullParametersOptions options_;
  std::vector<ShownUnit> shown_;
  int exceptions_;  ///< number of exceptions in flight when it was opened
  bool is_open_ = false;
};

}  // namespace fsdp::shard
