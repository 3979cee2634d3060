#pragma once

// How a process reaches the others over gloo, whichever group they make.

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <string>

#include "comm/launch_environment.h"
#include "comm/options.h"
#include "comm/run_store.h"

namespace c10d {
class ProcessGroupGloo;
}

namespace fsdp::comm {

struct GlooPlace {
  RunStore store;                       ///< of the whole run
  std::string address;                  ///< of this host, where its ranks listen
  std::chrono::milliseconds timeout{};  ///< of a collective, and of connecting
};

/// Where the run's processes are connected; all of them have joined the store.
GlooPlace gloo_place(const LaunchEnvironment& environment, const CommOptions& options, RunStore store);

/// A group's connections, once all of its `size` members have theirs; this is member `rank`. Collective over
/// them; `prefix` in the store is theirs alone. Throws what c10d throws, or with its text what it throws on
/// another rank.
c10::intrusive_ptr<c10d::ProcessGroupGloo> connect_gloo(const GlooPlace& place, const std::string& prefix,
                                                        int rank, int size);

}  // namespace fsdp::comm
