#pragma once

// FullParameters: the module's parameters whole and in fp32, outside of forward and backward, to look at or
// to change. In the manner of PyTorch's FSDP.summon_full_params.
//
//   {
//     FullParameters full(*engine, {.writeback = true});
//     at::NoGradGuard no_grad;
//     model->weight.mul_(0.5);
//   }  // the shards have the new values
//
// For the parameters as tensors of their own, see shard/state_dict.h.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "shard/engine.h"

namespace fsdp::shard {

struct FullParametersOptions {
  /// On leaving, each rank copies its range of what the user wrote to its shard. Every rank must have written
  /// the same values. PyTorch's default is on, and has to be turned off for rank0_only; here who wants to
  /// write says so.
  bool writeback = false;
  /// Ranks other than 0 take part in the gathers and keep nothing; their parameters must not be read. Not
  /// with writeback: the ranges of the other ranks would be lost.
  bool rank0_only = false;
  /// The full parameters lie in host memory.
  bool to_host = false;
  /// Patterns of names of units (see util/text.h); empty: all. The parameters of other units must
  /// not be read.
  std::vector<std::string> units = {};
};

/// While it is open, the parameters of the module are whole: fp32, with their own shapes, in memory of their
/// own whatever the strategy is, so that without writeback nothing that the user writes stays. The memory is
/// that of the units that it shows and does not come from the engine's pool. Gradients are not touched, and
/// no forward or backward may run.
///
/// A parameter whose data the user replaced (set_data, Module::to()) is written back as well, if it has its
/// shape and a floating type.
class FullParameters {
 public:
  /// Collective, with the same options on all ranks; between steps. Throws Error(kUsage) when the engine is
  /// in use (Engine::require_rest()), for rank0_only with writeback and for a pattern that matches no unit.
  /// When it throws, the parameters are as they were. `engine` must outlive the object.
  explicit FullParameters(Engine& engine, FullParametersOptions options = {});

  /// close(), but without writeback when an exception is what ends the scope; an error is logged.
  ~FullParameters();
  FullParameters(const FullParameters&) = delete;
  FullParameters& operator=(const FullParameters&) = delete;

  /// Writes back if the options say so and gives the parameters back to the engine; no effect when closed
  /// already. Not collective. Throws Error(kUsage) for replaced data that does not fit: then nothing is
  /// written, and the parameters are the engine's again all the same.
  void close();

  bool is_open() const { return is_open_; }
  /// Memory of the full parameters on this rank.
  int64_t bytes() const;

 private:
  struct ShownUnit {
    Unit* unit;
    at::Tensor whole;                 ///< [unsharded_numel] fp32
    std::vector<at::Tensor> at_rest;  ///< what the parameters are otherwise
  };
  static std::vector<std::string> take_in_replaced_data(const ShownUnit& shown);

  Engine& engine_;
  FullParametersOptions options_;
  std::vector<ShownUnit> shown_;
  int exceptions_;  ///< under way when it was opened
  bool is_open_ = false;
};

}  // namespace fsdp::shard
