#pragma once

#include <memory>

#include "comm/api/communicator.h"
#include "comm/shm/host_ranks.h"
#include "comm/shm/shm_group.h"

namespace fsdp::comm {

/// Collectives of a group of ranks of one host, in memory that they share (shared_segment.h). They are
/// complete at the call.
///
/// Buffers of allocate() lie in shared memory, from where the other ranks read them: all-gather and
/// reduce-scatter then write each byte of their output once and read each input once. Other tensors are
/// copied through a buffer. A rank whose process has ended is noticed within a second.
///
/// reduce_scatter() of bfloat16 or float16 also takes a float32 output, which receives the sum unrounded.
std::unique_ptr<Communicator> make_shm_communicator(std::shared_ptr<ShmGroup> group);

/// Shared memory for collectives of the ranks of this host; ordinary memory if the system has none left.
at::Tensor allocate_shared(const HostRanks& host, int64_t numel, at::ScalarType dtype);

}  // namespace fsdp::comm
