#pragma once

// Collectives of a group of ranks over gloo (TCP).

#include <memory>
#include <string>

#include "comm/api/communicator.h"
#include "comm/api/group_failure.h"
#include "comm/api/launch_environment.h"
#include "comm/api/run_store.h"
#include "comm/gloo/gloo_place.h"
#include "comm/options/options.h"

namespace fsdp::comm {

/// Collectives of all processes of the run; they are complete at the call. Collective over the run. Without
/// `store` this function joins the run's store.
///
/// Rank 0 hosts the store at MASTER_ADDR:MASTER_PORT; it listens on every address of that host and has no
/// authentication, so a run needs a trusted network. Throws Error(kTimeout) when not all processes arrive
/// within options.timeout_seconds, and Error(kUsage) when the address cannot be used.
std::unique_ptr<Communicator> make_gloo_communicator(const LaunchEnvironment& environment,
                                                     const CommOptions& options, RunStore store = {});

/// The same for a group of the run's ranks; `prefix` in the store must be unique to it.
std::unique_ptr<Communicator> make_gloo_group(const GlooPlace& place, GroupIdentity identity,
                                              const std::string& prefix);

}  // namespace fsdp::comm
