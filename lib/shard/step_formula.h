#pragma once

// What one training step communicates and holds, computed from the units' sizes and the options alone; and
// what the engine counts must agree with it (tests/shard/step_formula_test.cpp).
//
// Communication, a micro-batch. W ranks cut a unit of n parameters, padded to a multiple of W, into shards of
// s = n / W:
//
//   all-gathers in forward    every cut unit once; payload s of param_dtype a rank
//   all-gathers in backward   every cut unit that was freed after its forward, once. Not freed are: the root
//                             units (unless reshard_root_after_forward), the unit that ends forward last
//                             (unless reshard_last_after_forward), units that keep_after_forward names, and
//                             all units under shard_grad_op or without reshard_after_forward
//   reduce-scatters           every cut unit with trainable parameters once; payload s of reduce_dtype
//   all-reduces               of units that several ranks hold alike: whole units (no_shard, replicated
//                             parameters), payload n of reduce_dtype; and each shard after its reduce-scatter
//                             where shards have replicas (hybrid_shard), payload s of reduce_dtype
//
// A world of one communicates nothing. With gradient accumulation everything is multiplied by the number of
// micro-batches; under no_sync the reductions are not. Prefetching changes when, never how much.
//
// Memory. P(i) is the gathered unit i, G(i) its gradient, i the place in forward. Where a unit is not
// gathered in place, its gather holds the gathered shards beside P(i) until they are copied out. The bound on
// what is live at once is the largest of
//
//   forward    P(i) + P(i+1): unit i-1 is freed before the gather of i+1, issued beside the compute of i, is
//              enqueued. Without prefetch P(i) alone; without limit_all_gathers all units from i on.
//   backward   P(i) + G(i) + max(G(i+1), P(i-1)), with backward_prefetch = "pre": unit i in use, its
//              gradient being accumulated, and one buffer more. That one is first the input of the reduction
//              of i+1, then the gather of i-1: the gather is behind the reduction on the communication
//              stream, takes its memory when its turn comes, and the reduction has given its own back by
//              then. After the backward of i, P(i) is freed, and G(i) is the input being sent beside
//              P(i-1) and G(i-1): the same three buffers. With "post" and "none" the gather of i is behind
//              the reduction of i+1, and P(i) + G(i) are left.
//
// So never more than two gathered units and one gradient, or one gathered unit and two gradients: the
// largest neighbours of this kind, not the largest units wherever they are. To it are added
//
//   root units                        P always, G in backward
//   units that stay after forward     P from their forward to the end of their backward
//   units around a unit               P, and G in backward
//   units without differentiable      P + G from their backward to the end of the pass
//   input (embeddings)
//   under no_sync                     G of all units
//
// G counts where units are cut; the gradient of a whole unit becomes the shard's own. Not in the bound: one
// gradient of one parameter at a time, before autograd has added it into G.
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
  bool no_sync = false;   ///< only the last micro-batch reduces, the sum of all
  bool with_peak = true;  ///< off: leaves unsharded_bytes 0, which takes the square of the units otherwise
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
