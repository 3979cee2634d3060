#pragma once

// Communicators whose collectives run in a stream (base/tensor/stream.h) beside the caller: a thread for
// tensors in host memory, a stream of the device for tensors of a device.

#include <memory>

#include "comm/api/communicator.h"

namespace fsdp::comm {

/// Runs the collectives, barriers and tasks of `inner`, which completes collectives at the call, in the
/// thread of a util::Stream, in the order of the calls. Returns `inner` itself for a world of one. A subgroup
/// has a separate stream, so the collectives of two groups run concurrently.
///
/// The call looks only at sizes and types of the tensors, so their memory may be absent (util::free_storage)
/// as long as a task enqueued before restores it; views of such memory must be made before it is freed or
/// inside a task. After a failure the group cannot be used again: every later wait() throws the first error.
/// Destruction drops the tasks that have not begun and waits two seconds for the one that runs; end a run
/// with a barrier.
std::shared_ptr<Communicator> make_queued_communicator(std::shared_ptr<Communicator> inner);

struct DeviceParts {
  at::Device device = at::kCPU;
  std::shared_ptr<Communicator> host;  ///< used for tensors in host memory and for barriers
  /// Used for tensors of the device; the same ranks. Its collectives complete in the order of the
  /// communication stream, which is current at each call: NCCL, or make_staged_communicator().
  std::shared_ptr<Communicator> on_device;
};

/// Collectives of a device's tensors in the order of a stream of the device, and of host tensors by
/// `parts.host`, like c10d's "cpu:gloo,cuda:nccl". Issuing never blocks; Work::wait() makes the caller's
/// stream wait. Collectives of host tensors and barriers are ordered separately. allocate() returns device
/// memory, allocate_on_host() host memory. A subgroup has a separate stream. So has a world of one: shards
/// are cast and copied there beside the compute.
std::shared_ptr<Communicator> make_device_communicator(const DeviceParts& parts);

/// Collectives of a device's tensors through host memory and `host`: for ranks that share a device, which
/// NCCL refuses, and for devices without a library of collectives. The caller waits for each collective.
std::shared_ptr<Communicator> make_staged_communicator(at::Device device, std::shared_ptr<Communicator> host);

}  // namespace fsdp::comm
