#pragma once

// Collectives beside the computation, on a communicator whose own collectives are complete at the call.

#include <memory>

#include "comm/communicator.h"

namespace fsdp::comm {

/// Every collective, barrier and enqueued task becomes a task of one util::Stream, in the order of the calls:
/// issuing one is putting it into the queue, and the stream's thread calls `inner` and waits. A world of one
/// has nobody to wait for and gets `inner` itself. A subgroup gets a stream of its own, so the collectives of
/// two groups run beside each other.
///
/// At the call only sizes and types of the tensors are looked at, so their memory may be absent
/// (util::free_storage) as long as a task enqueued before restores it; views of such memory are made before
/// it goes or inside a task. After a failure the group cannot be used again: every later wait() throws the
/// first error. Destruction drops what has not begun and waits two seconds for what runs; end a run with a
/// barrier.
std::shared_ptr<Communicator> make_queued_communicator(std::shared_ptr<Communicator> inner);

}  // namespace fsdp::comm
