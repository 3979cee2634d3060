#pragma once

#include <memory>
#include <string>

#include "comm/communicator.h"
#include "comm/host_ranks.h"
#include "comm/launch_environment.h"
#include "comm/options.h"
#include "comm/run_store.h"
#include "comm/shm_group.h"

namespace fsdp::comm {

/// A communicator, or why the ranks cannot share memory.
struct ShmAttempt {
  std::unique_ptr<Communicator> communicator;
  std::string obstacle;  ///< the same text on all ranks; empty when there is a communicator
};

/// Collectives in memory that the ranks of one host share (shared_segment.h). They are complete at the call.
/// Collective over all processes of the run, which have joined the store; it is not needed afterwards.
///
/// What allocate() gives lies in shared memory, from where the others read it: an all-gather then writes each
/// byte of its output once and reads each input once, and so does a reduce-scatter. Other tensors work too,
/// by way of a buffer. A rank whose process has ended is noticed within a second.
ShmAttempt try_shm_communicator(const LaunchEnvironment& environment, const CommOptions& options,
                                RunStore& store, const HostRanks::Options& host = {});

/// The same over a group of ranks of one host; `key` is the group's alone in the run. Here a sum of bfloat16
/// or float16 may be left unrounded: reduce_scatter() takes a float32 output for such an input.
std::unique_ptr<Communicator> make_shm_communicator(std::shared_ptr<ShmGroup> group, std::string key);

/// Memory for collectives of the ranks of this host; ordinary memory when the system has no more to share.
at::Tensor allocate_shared(const HostRanks& host, int64_t numel, at::ScalarType dtype);

}  // namespace fsdp::comm
