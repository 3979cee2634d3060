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

/// Everything that this process needs to reach the others, in any group.
struct GlooPlace {
  RunStore store{};                     ///< the run's store
  std::string address{};                ///< address of this host, at which its ranks listen
  std::chrono::milliseconds timeout{};  ///< limit for a collective, and for connecting
  /// LaunchEnvironment::is_broken_off. A few milliseconds after it returns true, waiting for others ends with
  /// Error(kPeerLost).
  std::function<bool()> is_broken_off = nullptr;
};

/// Interval at which GlooPlace::is_broken_off is called, and the text of the error.
constexpr std::chrono::milliseconds kLookForBreak{10};
constexpr const char* kBrokenOff = "the launcher has told the ranks to leave this group";

/// Requires: all processes of the run have joined the store. Throws Error(kUsage) if GLOO_DEVICE_TRANSPORT
/// names a transport that libtorch's gloo lacks.
GlooPlace gloo_place(const LaunchEnvironment& environment, const CommOptions& options, RunStore store);

/// Connects member `rank` with the other `size` - 1 members and returns when all members are connected.
/// Collective over them; `prefix` in the store must be unique to the group. Throws the exceptions of c10d, or
/// one with the text of another member's exception.
c10::intrusive_ptr<c10d::ProcessGroupGloo> connect_gloo(const GlooPlace& place, const std::string& prefix,
                                                        int rank, int size);

}  // namespace fsdp::comm
