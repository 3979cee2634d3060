#pragma once

#include <memory>

#include "comm/activity.h"
#include "comm/communicator.h"
#include "comm/launch_environment.h"
#include "comm/options.h"

namespace fsdp::comm {

/// The communicator of all processes of the run; its collectives run beside the caller. Collective; see
/// join_run_store() and make_gloo_communicator() for errors and make_queued_communicator() for its end.
/// `activity`, if any, hears of every collective.
///
/// Backend "auto" is shared memory when the launcher has started all processes on one node and they can share
/// it; else gloo, and rank 0 logs why. Backend "shm" throws Error(kUsage) when they cannot.
std::shared_ptr<Communicator> make_communicator(const LaunchEnvironment& environment,
                                                const CommOptions& options,
                                                std::shared_ptr<Activity> activity = nullptr);

}  // namespace fsdp::comm
