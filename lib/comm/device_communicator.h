#pragma once

// Collectives for tensors of a device, in the order of a stream of that device, beside those for tensors in
// host memory: c10d's "cpu:gloo,cuda:nccl", with whatever serves the host.
//
// The caller issues; nothing blocks it. A collective's Work makes the caller's stream wait for it (see Work
// and util::Event). What ranks tell each other in host memory, and barriers, have an order of their own.

#include <memory>

#include "comm/communicator.h"

namespace fsdp::comm {

struct DeviceParts {
  at::Device device = at::kCPU;
  std::shared_ptr<Communicator> host;  ///< for tensors in host memory, and for barriers
  /// For tensors of the device, the same ranks. It is called with the communication stream current, and its
  /// collectives are complete in the order of that stream: NCCL, or make_staged_communicator().
  std::shared_ptr<Communicator> on_device;
};

/// Buffers that it allocates lie on the device, those of allocate_on_host() in host memory. A subgroup has a
/// stream of its own. A world of one has its stream too: shards are cast and copied there beside the compute.
std::shared_ptr<Communicator> make_device_communicator(const DeviceParts& parts);

/// Collectives of a device's tensors through host memory and `host`, whose collectives they are: for ranks
/// that share a device, which NCCL refuses, and for devices without a library of collectives. The caller
/// waits for each.
std::shared_ptr<Communicator> make_staged_communicator(at::Device device, std::shared_ptr<Communicator> host);

}  // namespace fsdp::comm
