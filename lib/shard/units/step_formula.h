#pragma once

// What one training step communicates and holds: the commands of its schedule (shard/units/schedule.h) counted with
// the sizes of the units. tests/shard/units/step_formula_test.cpp compares it with what the engine counts.
//
// Communication per micro-batch. A unit of n parameters, padded to a multiple of W, is cut over W ranks into
// shards of s = n / W:
//
//   all-gathers in forward    every cut unit once; payload s of param_dtype per rank
//   all-gathers in backward   every cut unit that was freed after its forward, once
//   reduce-scatters           every cut unit with trainable parameters, once; payload s of reduce_dtype
//   all-reduces               units that several ranks hold whole (no_shard, replicated parameters): payload
//                             n of reduce_dtype; and shards with replicas (hybrid_shard), after their
//                             reduce-scatter: payload s of reduce_dtype
//
// With hybrid_optimizer = "global", s is a slice's shard, of which a rank updates m = s / slices, and there are
//
//   all-gathers between slices      every such unit once a step; payload m of the lower of param_storage and
//                                   param_dtype
//   reduce-scatters between slices  in place of the all-reduce of the shard; payload m of reduce_dtype
//
// With sums_by_sample, a reduce-scatter has as many slots of s as one round of micro-batches has nodes (shard/engine/reduce/sample_tree.h),
// once more for the second gradient of tied weights, and the all-reduce over R replicas, whose ranks have slots for the nodes of
// all replicas, is a reduce-scatter and an all-gather in backward of 1/R of them.
//
// Units without trainable parameters are not reduced; with adapters (trained_apart) those that stay gathered after forward are gathered once a step,
// and those with no differentiable output (frozen embeddings) in forward only.
// A world of one communicates nothing. Gradient accumulation multiplies everything by the number of
// micro-batches, except the all-gathers between slices, those of units that stay gathered for a step, the all-reduces over replicas
// (adds_before_all_reduce()), and the reductions under no_sync. Prefetching changes
// when units are communicated, never how much.
//
// Memory: an upper bound on the bytes of gathered parameters and unreduced gradients, at any timing of the
// collectives: an all-gather takes its memory when its turn in its queue comes, and a reduction gives the
// whole unit's gradients back when it has sent them. Units of one group share a queue. With
// reduce_scatter_group, reduce-scatters have another, and queues are in no order. Where a layout does not
// gather in place, the gathered shards count beside the unit until they are copied out. Gradients count where
// units are cut; the gradient of a whole unit becomes the shard's own. Not in the bound: the gradient of one
// parameter at a time, until it is added to its unit's, and slots.
//
// On a device, whose streams run behind the calls, an all-gather takes its memory when it is issued, and a
// reduction gives its input back when the caller waits for it: no memory is handed on in between.
//
// With the defaults, units in a row need at most two gathered units and one gradient, or one gathered unit
// and two gradients, beside the root: the buffer of a reduction serves the all-gather behind it. With
// reduce_scatter_group and on a device it does not, and two gathered units and two gradients may be there at
// once.
//
// Assumed: each unit is used once per pass, in the order of the modules; backward reaches every unit with
// trainable parameters; a stage whose activations are recomputed contains no units. An engine's formula takes
// inputs to be differentiable before the first pass; afterwards it knows which are.

#include <cstdint>
#include <vector>

#include "shard/units/unit_sizes.h"

namespace fsdp::shard {

struct StepFormulaOptions {
  int64_t micro_batches = 1;
  bool no_sync = false;  ///< only the last micro-batch reduces, for all
  /// Whether streams run behind the calls (see Memory); for an engine, whether its device is not the CPU.
  bool on_device = false;
};

/// Bytes and numbers of collectives of this rank in one step.
struct StepFormula {
  Traffic traffic;                                            ///< of both passes
  Traffic between_slices;                                     ///< of these, with hybrid_optimizer = "global"
  int64_t forward_all_gathers = 0, backward_all_gathers = 0;  ///< the other all-gathers by pass
  int64_t forward_all_gather_bytes = 0, backward_all_gather_bytes = 0;

  int64_t unsharded_bytes = 0;    ///< bound on BufferAccount::peak
  int64_t shard_bytes = 0;        ///< the weights that the rank keeps, padding included
  int64_t slice_shard_bytes = 0;  ///< what it keeps of its slice's beside them

  /// A common estimate for FSDP without shared buffers, of the largest unit: two unsharded units (one in use,
  /// one being gathered), two communication buffers of a shard, and two unsharded gradients (one accumulated,
  /// one copied into the input of the reduce-scatter).
  int64_t separate_buffers_bytes = 0;
  int64_t separate_forward_bytes = 0;  ///< without the gradients
};

/// `units`: from unit_sizes(), of an outline or of an engine (shard/engine/engine_sizes.h).
StepFormula step_formula(const std::vector<UnitSizes>& units, const ShardOptions& options,
                         const StepFormulaOptions& step = {});

}  // namespace fsdp::shard
