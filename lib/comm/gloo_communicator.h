#pragma once

#include <memory>

#include "comm/communicator.h"
#include "comm/gloo_place.h"
#include "comm/group_identity.h"
#include "comm/launch_environment.h"
#include "comm/options.h"
#include "comm/run_store.h"

namespace fsdp::comm {

/// Joins the run's processes over TCP (c10d's store and gloo). Collective over all processes of the run. The
/// communicator's collectives are complete at the call.
///
/// The store is hosted by rank 0 at MASTER_ADDR:MASTER_PORT; it listens on every address of that host and has
/// no authentication, so a run belongs on a trusted network. Throws Error(kTimeout) when not all processes
/// arrive within options.timeout_seconds, and Error(kUsage) when the address cannot be used.
std::unique_ptr<Communicator> make_gloo_communicator(const LaunchEnvironment& environment,
                                                     const CommOptions& options);

/// The same where the processes have joined the store already.
std::unique_ptr<Communicator> make_gloo_communicator(const LaunchEnvironment& environment,
                                                     const CommOptions& options, RunStore store);

/// Of some of the run's ranks, and collective over them; `prefix` in the store is theirs alone.
std::unique_ptr<Communicator> make_gloo_group(const GlooPlace& place, GroupIdentity identity,
                                              const std::string& prefix);

}  // namespace fsdp::comm
