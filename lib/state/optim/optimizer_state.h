#pragma once

// The state of an optimizer in memory, under the names of the unsharded model's parameters, beside the state
// dicts of the model (shard/state/state_dict.h): FairScale's gather_full_optim_state_dict() and
// get_shard_from_optim_state_dict(), and PyTorch's FSDP.full_optim_state_dict(),
// scatter_full_optim_state_dict() and sharded_optim_state_dict().
//
//   full     every state as a whole tensor: fits any world size, wrapping and strategy
//   sharded  this rank's range of every state: fits the same if the loaded ranges cover the rank's own
//
// A state has the shape of its parameter, except adafactor's averages of rows and columns, which have one
// dimension. The average of the weights ("ema") is a state too. Frozen parameters have no state. A tied
// parameter is listed under the first of its names; loading accepts the others.
//
// The optimizer must have been made from flat_parameters() of the engine. All functions but
// sharded_optimizer_state() throw Error(kUsage) while the engine is in use (Engine::require_rest()). Before
// they write, functions that load throw Error(kCheckpoint) with a list of missing, unexpected and misshapen
// states.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "shard/engine/tensor_slice.h"
#include "shard/state/state_dict.h"
#include "state/optim/optimizer.h"

namespace fsdp::shard {
class Engine;
}

namespace fsdp::optim {

/// The state that an optimizer keeps for one parameter.
struct ParameterState {
  int64_t step_count = 0;                    ///< steps in which its unit had a gradient
  std::map<std::string, at::Tensor> states;  ///< keyed by Optimizer::state_names(), such as "exp_avg"
};

/// The states of all parameters, whole.
struct FullOptimizerState {
  int64_t step_count = 0;  ///< Optimizer::step_count()
  std::map<std::string, ParameterState> parameters;
};

/// This rank's ranges of all states.
struct ShardedOptimizerState {
  int64_t step_count = 0;
  std::map<std::string, int64_t> parameter_step_counts;
  std::vector<shard::TensorSlice> slices;  ///< named "<state>/<parameter>"
};

/// All states, in separate memory and their own types, gathered unit by unit: beside the result at most one
/// state of one unit is in memory. With rank0_only, the result of other ranks is empty. Collective.
FullOptimizerState full_optimizer_state(shard::Engine& engine, const Optimizer& optimizer,
                                        const shard::FullStateDictOptions& options = {});

/// Copies this rank's ranges from whole states of any floating type. Not collective; all ranks must pass the
/// same values.
///
/// Step counts are kept per unit. A unit whose parameters have different counts gets the largest, with a
/// warning.
void load_full_optimizer_state(shard::Engine& engine, Optimizer& optimizer, const FullOptimizerState& state);

/// Loads rank 0's `state` on all ranks like load_full_optimizer_state(). It is sent unit by unit, so that
/// other ranks hold at most one state of one unit beside their own. The `state` of other ranks is ignored.
/// Collective. Errors are thrown on all ranks.
void scatter_full_optimizer_state(shard::Engine& engine, Optimizer& optimizer,
                                  const FullOptimizerState& state);

/// This rank's ranges, possibly empty, as views of the optimizer's states, or as fp32 copies of those in 8
/// bits. Clone the data to keep it beyond the next step. Averages of rows and columns are whole on every
/// rank. Not collective.
ShardedOptimizerState sharded_optimizer_state(const shard::Engine& engine, const Optimizer& optimizer);

/// Loads ranges. A state may have several ranges, such as those of all ranks of another run. Not collective:
/// it may throw on some ranks only, see comm::agree().
void load_sharded_optimizer_state(shard::Engine& engine, Optimizer& optimizer,
                                  const ShardedOptimizerState& state);

/// Calls visit(kind, segment, view) for each state of each trainable parameter that has the state, state by
/// state, in the order of the units. view: this rank's part, [segment.numel()]. If kind.is_whole(), it is the
/// whole state, passed once, with the parameter's first segment.
void for_each_state(const shard::Engine& engine, const Optimizer& optimizer,
                    const std::function<void(const StateKind& kind, const shard::Segment& segment,
                                             const StateView& view)>& visit);

}  // namespace fsdp::optim
