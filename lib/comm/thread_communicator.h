#pragma once

// Ranks that are threads of one process: tests of everything that is collective run with it in milliseconds.

#include <functional>
#include <memory>

#include "comm/communicator.h"

namespace fsdp::comm {

/// Runs `body(communicator)` on `world_size` threads, each with its rank's communicator, and joins them. The
/// collectives run beside the body, as those of processes do (make_queued_communicator()).
/// Subgroups must be done with when the body ends, or what is under way in them is dropped.
/// When a rank throws, the others' collectives throw too, and the first exception is thrown from here.
void run_ranks_as_threads(int world_size, const std::function<void(Communicator&)>& body);

}  // namespace fsdp::comm
