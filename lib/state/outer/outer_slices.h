#pragma once

// The state of a run with local steps in checkpoints:
//
//   model/<parameter>                                    the outer weights, once
//   optimizer/outer_momentum/<parameter>                 the outer optimizer's buffer, once
//   optimizer/outer_delta/<parameter>                    the mean of an exchange that is not used yet, once
//   optimizer/<state>/<parameter>                        a state of replica 0's inner optimizer
//   optimizer/<state>.replica<r>/<parameter>             the same of replica r, from 1
//   optimizer/local_weights[.replica<r>]/<parameter>     a replica's weights, where they differ from these
//
// Without the outer optimizer's, and the states of replicas from 1 on, this is the checkpoint of a run
// without local steps, which can therefore go on from it, and the other way round. A replica that the
// checkpoint does not know gets the states of replica 0.

#include <string>
#include <vector>

#include "shard/engine/tensor_slice.h"
#include "state/checkpoint/state_slices.h"
#include "state/manifest/manifest.h"
#include "state/outer/outer_optimizer.h"

namespace fsdp::optim {

/// Returns the slices of a save. Collective over the replicas.
std::vector<shard::TensorSlice> outer_slices_to_save(OuterOptimizer& outer);

/// The destinations of a load.
struct OuterSlices {
  std::vector<shard::TensorSlice> slices;
  bool has_local_weights = true;
  std::vector<bool> has_delta;  ///< indexed by unit
};
/// Returns the places of all state after this step, under the names of a replica of a run with local steps.
/// Call OuterOptimizer::loaded() when they are filled.
OuterSlices outer_slices_to_load(OuterOptimizer& outer, int64_t step);

/// Returns those of outer_slices_to_load() that the checkpoint has for this replica, and removes the tensors
/// that are none of them from the manifest, if they are only a state of local steps. Outer state that the
/// checkpoint lacks begins anew.
OuterSlices outer_slices_to_load(OuterOptimizer& outer, checkpoint::Manifest& manifest);

/// Returns all state of this rank, or the memory for it, under names that do not depend on the replica.
/// Requires: no fragment has a delay.
std::vector<shard::TensorSlice> outer_slices_in_memory(OuterOptimizer& outer);

/// Removes tensors of local steps from the manifest, for a run without them; returns whether there were any.
bool remove_outer_tensors(checkpoint::Manifest& manifest);

}  // namespace fsdp::optim
