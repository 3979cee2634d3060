#pragma once

#include <memory>

#include "comm/api/activity.h"
#include "comm/api/communicator.h"
#include "comm/api/launch_environment.h"
#include "comm/options/options.h"

namespace fsdp::comm {

/// This process's place in the run: the one that MPI reports with a backend over MPI, otherwise
/// read_launch_environment(). Throws Error(kUsage); see MpiRun.
LaunchEnvironment launch_environment(const CommOptions& options);

/// The communicator of all processes of the run; its collectives run beside the caller. Collective. Errors
/// are those of join_run_store() and make_gloo_communicator(); destruction is as for
/// make_queued_communicator(). `activity`, if any, records every collective. `host` identifies this process's
/// host.
///
/// options/backend.h describes the backends. Rank 0 logs why "auto" is gloo. Backends "shm" and
/// "hierarchical" throw Error(kUsage) when the ranks' hosts do not allow them.
///
/// Backends over MPI need processes that a launcher of MPI has started. They take the ranks from MPI and
/// ignore `environment`.
///
/// With a `device` the communicator also accepts tensors of the device (make_device_communicator()). They are
/// exchanged over NCCL with "auto" and "nccl" if each rank has a separate GPU, or ranks that share one have
/// different values of NCCL_HOSTID; if not, "nccl" throws Error(kUsage). Otherwise they are exchanged through
/// host memory, and rank 0 logs a warning.
std::shared_ptr<Communicator> make_communicator(const LaunchEnvironment& environment,
                                                const CommOptions& options,
                                                std::shared_ptr<Activity> activity = nullptr,
                                                const HostOptions& host = {}, at::Device device = at::kCPU);

}  // namespace fsdp::comm
