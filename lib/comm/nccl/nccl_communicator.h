#pragma once

// Collectives of tensors on GPUs over NCCL (c10d's ProcessGroupNCCL), one GPU per rank. Only the CUDA flavour
// of the build has it (cuda/nccl_communicator.cpp); in the other, make_nccl_communicator() throws.

#include <chrono>
#include <memory>

#include "comm/api/activity.h"
#include "comm/api/communicator.h"
#include "comm/api/group_failure.h"
#include "comm/api/run_store.h"

namespace fsdp::comm {

struct NcclPlace {
  RunStore store{};                     ///< the run's store
  GroupIdentity identity{};             ///< run_identity() for all ranks of the run
  int device = 0;                       ///< this rank's GPU; see shared_gpu()
  std::chrono::milliseconds timeout{};  ///< limit for a collective, and for connecting
  /// Records each collective while it is the oldest that the GPU has not finished (the calls return before).
  /// May be null.
  std::shared_ptr<Activity> activity = nullptr;
};

/// Connects the ranks of `place.identity`. Collective over them. Throws Error(kTimeout) or Error(kPeerLost)
/// when not all arrive in time, Error(kUsage) if there is no GPU or NCCL refuses, as it does when ranks share
/// a GPU and NCCL_HOSTID is not different on each.
///
/// - Tensors must be contiguous and on the GPU. A collective begins after the work on the current stream, and
///   Work::wait() makes that stream wait for it. NCCL runs in a separate stream of high priority. No call
///   waits for the GPU except barrier() and Work::synchronize().
/// - reduce_scatter and all_reduce add in NCCL's order, not in rank order, in the type of the tensor.
/// - allocate() returns memory of the GPU. There is no common memory.
/// - A collective that does not end in time, or that NCCL reports as failed, is ended on all ranks by c10d's
///   watchdog; then every call and every Work::wait() of the group throws an error with the collective, its
///   unit, and the ranks that did not answer (comm/nccl/collective_guard.h). Results computed after a wait
///   for the failed collective are invalid.
/// - A subgroup has a separate NCCL communicator, which takes memory of the GPU. It is made by the subgroup's
///   first collective, which throws what connecting throws, so a subgroup without collectives has none.
///
/// NCCL reads its own environment variables (NCCL_SOCKET_IFNAME, NCCL_DEBUG and so on). c10d's TORCH_NCCL_*
/// have effect too, except those by which a failure would end the process or block the caller.
/// TORCH_CPP_LOG_LEVEL=INFO enables c10d's log, which is off by default.
std::shared_ptr<Communicator> make_nccl_communicator(const NcclPlace& place);

}  // namespace fsdp::comm
