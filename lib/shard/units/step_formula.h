#pragma once

// Communication and memory of one training step: the commands of its schedule (shard/units/schedule.h),
// counted with the sizes of the units. tests/shard/units/step_formula_test.cpp compares the result with the
// engine's counters.
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
// With hybrid_optimizer = "global", s is a slice's shard, of which a rank updates m = s / slices, and there
// are
//
//   all-gathers between slices      every such unit once a step; payload m of the lower of param_storage and
//                                   param_dtype
//   reduce-scatters between slices  in place of the all-reduce of the shard; payload m of reduce_dtype
//
// On coded links (shard/units/link_choice.h) a payload of s numbers is 2 * ceil(s / 256) bytes of scales and
// s bytes, or s / 2 with 4 bits, of codes (comm/options/link_type.h); that of an all-reduce over R ranks is R
// such parts of s / R numbers. A reduction whose ranks add inside their host first sends that part exactly
// there; it counts once, by what goes over the network.
//
// With sums_by_sample, a reduce-scatter has one slot of s for each node of a round of micro-batches
// (shard/engine/reduce/sample_tree.h), and as many again for the second gradient of tied weights. A
// reduce-scatter and an all-gather of 1/R of the slots of all R replicas replace the all-reduce.
//
// Units without trainable parameters are not reduced. With adapters (trained_apart), units that stay gathered
// after forward are gathered once a step, and units without a differentiable output (frozen embeddings) in
// forward only. A world of one communicates nothing. Gradient accumulation multiplies everything by the
// number of micro-batches, except the all-gathers between slices, those of units that stay gathered for a
// step, the all-reduces over replicas (adds_before_all_reduce()), and the reductions under no_sync.
// Prefetching changes when units are communicated, never how much.
//
// Memory: an upper bound on the bytes of gathered parameters and unreduced gradients, at any timing of the
// collectives. An all-gather takes its memory when its queue reaches it, and a reduction gives the gradients
// of the whole unit back when it has sent them. Units of one group share a queue. With reduce_scatter_group,
// reduce-scatters have another queue, and the two queues are not ordered. Where a layout does not gather in
// place, the gathered shards count in addition to the unit until they have been copied out. Gradients count
// where units are cut; the gradient of a whole unit becomes the shard's own. The bound excludes slots, and
// the gradient of one parameter at a time until it is added to the unit's buffer.
//
// On a device, whose streams run behind the calls, an all-gather takes its memory when it is issued, and a
// reduction gives its input back when the caller waits for it. No memory is passed on in between.
//
// With the defaults, units in a row need at most two gathered units and one gradient, or one gathered unit
// and two gradients, besides the root, because the buffer of a reduction serves the all-gather behind it.
// With reduce_scatter_group and on a device it does not, and two gathered units and two gradients may exist
// at once.
//
// Assumptions: each unit is used once per pass, in the order of the modules; backward reaches every unit with
// trainable parameters; a stage whose activations are recomputed contains no units. Before the first pass,
// the formula of an engine assumes that all inputs are differentiable; afterwards it knows.

#include <cstdint>
#include <vector>

#include "shard/units/unit_sizes.h"

namespace fsdp::shard {

struct StepFormulaOptions {
  int64_t micro_batches = 1;
  bool no_sync = false;  ///< whether only the last micro-batch reduces, for all of them
  /// Whether streams run behind the calls (see Memory). True for an engine on a device other than the CPU.
  bool on_device = false;
};

/// Bytes and numbers of collectives of this rank in one step.
struct StepFormula {
  Traffic traffic;         ///< traffic of forward and backward
  Traffic between_slices;  ///< its part between slices (hybrid_optimizer = "global")
  int64_t forward_all_gathers = 0, backward_all_gathers = 0;  ///< all-gathers within slices, by pass
  int64_t forward_all_gather_bytes = 0, backward_all_gather_bytes = 0;

  int64_t unsharded_bytes = 0;  ///< bound on BufferAccount::peak
  int64_t shard_bytes = 0;      ///< weights that the rank keeps, padding included
  int64_t source_bytes = 0;     ///< weights that it keeps in addition and gathers from

  /// A common estimate for FSDP without shared buffers, for the largest unit: two unsharded units (one in
  /// use, one being gathered), two communication buffers of a shard, and two unsharded gradients (one
  /// accumulated, one copied into the input of the reduce-scatter).
  int64_t separate_buffers_bytes = 0;
  int64_t separate_forward_bytes = 0;  ///< the same estimate without the gradients
};

/// Computes the formula. `units`: the result of unit_sizes() for an outline or an engine
/// (shard/engine/engine_sizes.h).
StepFormula step_formula(const std::vector<UnitSizes>& units, const ShardOptions& options,
                         const StepFormulaOptions& step = {});

}  // namespace fsdp::shard
