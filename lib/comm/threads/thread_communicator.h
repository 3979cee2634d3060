#pragma once

// Ranks that are threads of one process, for tests of collective code.

#include <functional>

#include "comm/api/communicator.h"

namespace fsdp::comm {

/// Runs `body(communicator)` on `world_size` threads, each with its rank's communicator, and joins them. The
/// collectives run beside the body, as those of processes do (make_queued_communicator()). Collectives of
/// subgroups that are in progress when the body ends are dropped. When a rank throws, the others' collectives
/// throw too, and this function throws the first exception.
void run_ranks_as_threads(int world_size, const std::function<void(Communicator&)>& body);

}  // namespace fsdp::comm
