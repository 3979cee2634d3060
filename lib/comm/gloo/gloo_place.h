#pragma once

// How the ranks of a group connect over gloo (TCP).

#include <chrono>
#include <functional>
#include <string>

#include "comm/api/launch_environment.h"
#include "comm/api/run_store.h"
#include "comm/options/options.h"

namespace c10d {
class ProcessGroupGloo;
}

namespace fsdp::comm {

/// How this process reaches the others, in any group.
struct GlooPlace {
  RunStore store{};                     ///< of the whole run
  std::string address{};                ///< of this host; its ranks listen there
  std::chrono::milliseconds timeout{};  ///< of a collective, and of connecting
  /// That of the LaunchEnvironment: waiting for others ends with Error(kPeerLost) a few milliseconds after it says so.
  std::function<bool()> is_broken_off = nullptr;
};

/// How often to ask GlooPlace::is_broken_off, and what the error says then.
constexpr std::chrono::milliseconds kLookForBreak{10};
constexpr const char* kBrokenOff = "the launcher has told the ranks to leave this group";

/// For processes that have all joined the store.
GlooPlace gloo_place(const LaunchEnvironment& environment, const CommOptions& options, RunStore store);

/// Connects member `rank` with the other `size` - 1 members and returns when all members are connected.
/// Collective over them; `prefix` in the store must be unique to the group. Throws the exceptions of c10d, or
/// one with the text of another member's exception.
c10::intrusive_ptr<c10d::ProcessGroupGloo> connect_gloo(const GlooPlace& place, const std::string& prefix,
                                                        int rank, int size);

}  // namespace fsdp::comm
