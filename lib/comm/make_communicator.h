#pragma once

#include <memory>

#include "comm/activity.h"
#include "comm/communicator.h"
#include "comm/host_ranks.h"
#include "comm/launch_environment.h"
#include "comm/options.h"

namespace fsdp::comm {

/// The communicator of all processes of the run; its collectives run beside the caller. Collective; see
/// join_run_store() and make_gloo_communicator() for errors and make_queued_communicator() for its end.
/// `activity`, if any, hears of every collective. `host` says what this process takes its host for.
///
/// Backend "auto" is shared memory when all processes are on one host, hierarchical when they are on several
/// hosts with several on each, the same number on all; else gloo, and rank 0 logs why. Backends "shm" and
/// "hierarchical" throw Error(kUsage) when they cannot be had.
///
/// With a `device` the communicator takes its tensors too (make_device_communicator()): with "auto" and
/// "nccl" over NCCL, where the device is a GPU of this rank alone; "nccl" throws Error(kUsage) where that
/// cannot be. Otherwise through host memory, and rank 0 warns of it.
std::shared_ptr<Communicator> make_communicator(const LaunchEnvironment& environment,
                                                const CommOptions& options,
                                                std::shared_ptr<Activity> activity = nullptr,
                                                const HostRanks::Options& host = {},
                                                at::Device device = at::kCPU);

}  // namespace fsdp::comm
