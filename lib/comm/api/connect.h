#pragma once

// The interface by which a backend connects the ranks of a run.

#include <memory>
#include <string>

#include "comm/api/communicator.h"
#include "comm/api/launch_environment.h"
#include "comm/api/run_store.h"
#include "comm/options/options.h"

namespace fsdp::comm {

/// Everything that a backend needs to connect a run whose processes have joined the store.
struct RunToConnect {
  const LaunchEnvironment& environment;
  const CommOptions& options;
  const HostOptions& host;
  RunStore store;
};

/// Connects all ranks of the run for tensors in host memory. Collective over the run.
using ConnectFunction = std::unique_ptr<Communicator>(RunToConnect run);

// The function of each backend, which the backend's folder defines.
#define FSDP_CONNECT_FUNCTION(member, name, connect, ...) ConnectFunction connect;
FSDP_BACKENDS(FSDP_CONNECT_FUNCTION)

/// The key of the group of all ranks, which is unique in the run.
constexpr const char* kRunKey = "run";

/// Leaves the store and throws Error(kUsage), because the ranks are not placed as options.backend requires.
[[noreturn]] void refuse_backend(RunToConnect& run, const std::string& expected, const std::string& found);

}  // namespace fsdp::comm
