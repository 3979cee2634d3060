#pragma once

// Writes a full checkpoint: one file that holds every tensor whole, as if a world of one had saved it.

#include <vector>

#include "checkpoint/save_request.h"
#include "comm/communicator.h"
#include "shard/tensor_slice.h"

namespace fsdp::checkpoint {

/// As save_sharded(), but the ranks' slices travel to rank 0, which writes them all to one file. They travel
/// in rounds, in each of which every rank gives a few MiB: no rank needs more memory beyond its own slices
/// than 64 MiB (a MiB a rank in worlds of more than 64), however large the units and tensors are.
///
/// Collective; conditions and errors are those of save_sharded().
SavedCheckpoint save_full(const SaveRequest& request, const std::vector<shard::TensorSlice>& slices,
                          comm::Communicator& communicator);

}  // namespace fsdp::checkpoint
