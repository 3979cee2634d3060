#pragma once

#include <memory>

#include "comm/api/activity.h"
#include "comm/api/communicator.h"
#include "comm/api/launch_environment.h"
#include "comm/options/options.h"
#include "comm/shm/host_ranks.h"

namespace fsdp::comm {

/// This process's place in the run: that of MPI with a backend over MPI, else read_launch_environment(). Throws Error(kUsage); see MpiRun.
LaunchEnvironment launch_environment(const CommOptions& options);

/// The communicator of all processes of the run; its collectives run beside the caller. Collective. For errors
/// see join_run_store() and make_gloo_communicator(), for destruction make_queued_communicator(). `activity`,
/// if any, records every collective. `host` is the identity of this process's host.
///
/// Backend "auto" is shared memory when all processes are on one host, hierarchical when they are on several
/// hosts with the same number on each, 2 or more; else gloo, and rank 0 logs why. Backends "shm" and
/// "hierarchical" throw Error(kUsage) when they are not possible.
///
/// Backend "mpi" needs processes that a launcher of MPI has started, and takes their ranks from MPI, whatever `environment` says.
///
/// With a `device` the communicator also accepts tensors of the device (make_device_communicator()). They are
/// exchanged over NCCL with "auto" and "nccl" if each rank has a separate GPU; if not, "nccl" throws
/// Error(kUsage). Otherwise they are exchanged through host memory, and rank 0 logs a warning.
std::shared_ptr<Communicator> make_communicator(const LaunchEnvironment& environment,
                                                const CommOptions& options,
                                                std::shared_ptr<Activity> activity = nullptr,
                                                const HostRanks::Options& host = {},
                                                at::Device device = at::kCPU);

}  // namespace fsdp::comm
