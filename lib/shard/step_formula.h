#pragma once

// What one training step communicates and holds: the commands of its schedule (shard/schedule.h) counted on the
// sizes of the units. What the engine counts must agree (tests/shard/step_formula_test.cpp).
//
// Communication, a micro-batch. W ranks cut a unit of n parameters, padded to a multiple of W, into shards of
// s = n / W:
//
//   all-gathers in forward    every cut unit once; payload s of param_dtype a rank
//   all-gathers in backward   every cut unit that was freed after its forward, once
//   reduce-scatters           every cut unit with trainable parameters once; payload s of reduce_dtype
//   all-reduces               of units that several ranks hold alike: whole units (no_shard, replicated
//                             parameters), payload n of reduce_dtype; and each shard after its reduce-scatter
//                             where shards have replicas (hybrid_shard), payload s of reduce_dtype
//
// A world of one communicates nothing. With gradient accumulation everything is multiplied by the number of
// micro-batches; under no_sync the reductions are not. Prefetching changes when, never how much.
//
// Memory. The bound on the bytes that gathered parameters and unreduced gradients take at once, whenever the
// collectives under way take and give back theirs: a gather takes its memory when its turn on the communication
// stream comes, a reduction gives the whole unit's gradients back when it has been sent. Where a unit is not
// gathered in place, its gather holds the gathered shards beside the unit until they are copied out. Gradients
// count where units are cut; the gradient of a whole unit becomes the shard's own. Not in the bound: one
// gradient of one parameter at a time, before autograd has added it to those of its unit.
//
// With the defaults, units in a row need no more than two gathered units and one gradient, or one gathered unit
// and two gradients, beside the root: the buffer of a reduction serves the gather behind it.
//
// Assumed: each unit is used once a pass, in the order of the modules; where units have trainable parameters,
// backward reaches them; a stage whose activations are recomputed has no units inside. Before the first pass
// inputs are taken to be differentiable; afterwards it is known which are.

#include <cstdint>
#include <vector>

#include "shard/traffic.h"
#include "shard/unit_sizes.h"

namespace fsdp::shard {

/// The micro-batches of one optimizer step.
struct StepFormulaOptions {
  int64_t micro_batches = 1;
  bool no_sync = false;  ///< only the last micro-batch reduces, the sum of all
};

/// All in bytes of this rank, or numbers of collectives of this rank, a step.
struct StepFormula {
  Traffic traffic;                                            ///< both passes
  int64_t forward_all_gathers = 0, backward_all_gathers = 0;  ///< traffic.all_gathers, by pass
  int64_t forward_all_gather_bytes = 0, backward_all_gather_bytes = 0;

  int64_t unsharded_bytes = 0;  ///< bound on BufferAccount::peak
  int64_t shard_bytes = 0;      ///< master weights, padding included

  /// What implementations without shared buffers need for the same model, a common way to estimate FSDP:
  /// two unsharded units (one in use, one being gathered), two communication buffers of a shard, and two
  /// unsharded gradients (one accumulated apart, one copied into the input of the reduce-scatter), of the
  /// largest unit each.
  int64_t separate_buffers_bytes = 0;
};

/// Of units as unit_sizes() gives them, with or without an engine (shard/engine_sizes.h).
StepFormula step_formula(const std::vector<UnitSizes>& units, const ShardOptions& options,
                         const StepFormulaOptions& step = {});

}  // namespace fsdp::shard
