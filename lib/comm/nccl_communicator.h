#pragma once

// Collectives of tensors on GPUs over NCCL (c10d's ProcessGroupNCCL), one GPU a rank. The CUDA flavour of the
// build has it (cuda/nccl_communicator.cpp); elsewhere make_nccl_communicator() throws.

#include <chrono>
#include <memory>
#include <string>

#include "comm/activity.h"
#include "comm/communicator.h"
#include "comm/group_identity.h"
#include "comm/run_store.h"

namespace fsdp::comm {

struct NcclPlace {
  RunStore store{};                     ///< of the whole run
  GroupIdentity identity{};             ///< run_identity() for all ranks of the run
  int device = 0;                       ///< this rank's GPU, no other rank's (comm/gpu_place.h)
  std::chrono::milliseconds timeout{};  ///< of a collective, and of connecting
  /// Hears of each collective while it is the oldest that the GPU has not ended: there is no other way to
  /// know, as the calls return before. May be null.
  std::shared_ptr<Activity> activity = nullptr;
};

/// Connects the ranks of `place.identity`. Collective over them. Throws Error(kTimeout) or Error(kPeerLost)
/// when not all come in time, Error(kUsage) where there is no GPU or NCCL refuses, as it does ranks that
/// share a GPU.
///
/// - It takes tensors on the GPU, contiguous ones, and is called with the stream current in whose order they
/// are:
///   a collective begins after what is on that stream, and its Work::wait() makes the stream wait for it.
///   NCCL's own stream is of high priority. No call waits for the GPU but barrier(), and Work::synchronize()
///   of the caller's.
/// - reduce_scatter and all_reduce add in an order of NCCL's, not in rank order, in the type of the tensor.
/// - allocate() gives memory of the GPU. There is no common memory.
/// - A collective that does not end in time, or that NCCL reports as failed, is ended on all ranks by c10d's
/// watchdog;
///   then every call and every Work::wait() of the group throws, with the collective, its unit, and the ranks
///   that did not answer (comm/collective_guard.h). What a stream has waited for until then holds no valid
///   results.
/// - A subgroup connects anew, with its own communicator of NCCL.
///
/// NCCL reads its own environment variables (NCCL_SOCKET_IFNAME, NCCL_DEBUG and so on). c10d's TORCH_NCCL_*
/// are read too, but for those by which a failure would end the process or block the caller.
/// TORCH_CPP_LOG_LEVEL=INFO shows c10d's own account, which is silent otherwise.
std::shared_ptr<Communicator> make_nccl_communicator(const NcclPlace& place);

/// What went wrong, in one line, of the text of an exception of c10d about NCCL.
std::string nccl_cause(const std::string& text);

}  // namespace fsdp::comm
