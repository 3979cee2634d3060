#pragma once

// The run's key-value store (c10d's), through which processes find each other before they are connected, and
// the texts of c10d's exceptions.

#include <chrono>
#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>
#include <vector>

#include "base/util/error.h"
#include "comm/api/call_within.h"
#include "comm/api/launch_environment.h"

namespace fsdp::comm {

using RunStore = c10::intrusive_ptr<c10d::Store>;

/// Joins the store at MASTER_ADDR:MASTER_PORT (TCP), which rank 0 hosts unless the launcher does, and waits
/// until all processes of the run have joined. Entries that earlier starts of the run left in a launcher's
/// store are not visible. If the store of an earlier rank 0, which may be about to end, answers at the
/// address, the process waits for the next store. Throws Error(kTimeout) if not all arrive in time,
/// Error(kIo) if another program uses the port, Error(kUsage) if the address cannot be used.
RunStore join_run_store(const LaunchEnvironment& environment, std::chrono::milliseconds timeout);

/// Limit for c10d's waits at the store that its time-out does not end, in addition to the time-out.
constexpr std::chrono::seconds kStoreGrace{2};

/// Runs `body`, which communicates with `others` other ranks through the store, and returns its result. All
/// that `body` does there, functions of this header included, has the store's time-out in common; a late body
/// may be abandoned (call_within()). Throws Error(kTimeout) or Error(kPeerLost) in place of c10d's
/// exceptions; the message names this rank and the store.
template <typename Body>
auto at_the_store(const RunStore& store, const LaunchEnvironment& environment, size_t others, Body body);

/// A meeting of ranks that combine their texts up a tree (RankTree::groups_of()): the first rank of a group
/// reads the texts of the others and combines them to its own text in a group of the level above. All ranks
/// read the last result, that of the first of all ranks: its size should not grow with the world.
struct TextMeeting {
  /// Unique in the run, also among meetings of other ranks that share a rank with this one.
  std::string purpose{};
  /// Combines the texts of members of a group, which are in the order of ranks. Runs on other threads than
  /// the caller's, perhaps after the call has returned: it must own what it uses.
  std::function<std::string(const std::vector<std::string>& texts)> combine{};
  /// Ranks that meet, ascending, including the caller; empty: all ranks of the run.
  std::vector<int> ranks{};
};

/// Returns the last result of the meeting, from this rank's `text` and the other ranks' texts. Collective
/// over the ranks, each of which reads and writes a number of entries of the store that grows with the
/// logarithm of their number.
std::string combine_texts(RunStore& store, const LaunchEnvironment& environment, const TextMeeting& meeting,
                          const std::string& text);

/// The same at a store used by the ranks of `meeting` alone, with the store's own time-out and exceptions.
std::string combine_texts(c10d::Store& store, const TextMeeting& meeting, int rank, std::string text);

/// Called before anything of c10d is made. Its own log is off unless TORCH_CPP_LOG_LEVEL is set: failures are
/// reported as errors of this library. Its flight recorder is off whatever TORCH_FR_BUFFER_SIZE is: threads
/// that use different groups write one map of all groups of the process there, without a lock.
void configure_c10d();

/// Called before an error that ends the run: rank 0, which may host the store, waits until the other ranks
/// have read everything they need.
void leave_store(RunStore& store, const LaunchEnvironment& environment);

/// Waits until a process listens at this host and port, but not beyond `deadline`; returns whether one does.
/// Polls every few milliseconds: c10d's store would wait 0.25 to 0.75 s after the first refusal, and longer
/// after each further one (c10d/Backoff.hpp). Also returns true when the answer is unclear (unknown name, no
/// reply), because the error of the subsequent connect() is more precise.
bool wait_for_listener(const std::string& host, int port, std::chrono::steady_clock::time_point deadline);

/// Whether the text of a c10d exception reports a time-out.
bool says_timeout(const std::string& text);

/// The first line of a c10d exception, without the stack trace that follows it. Addresses such as 249.85.0.0
/// are removed: gloo prints part of a pointer there when it never set the address of the peer.
std::string first_line(const std::string& text);

/// The cause, in one line, in the text of a c10d exception about NCCL.
std::string nccl_cause(const std::string& text);

[[noreturn]] void fail_at_the_store(const LaunchEnvironment& environment, size_t others,
                                    const std::exception& error);

template <typename Body>
auto at_the_store(const RunStore& store, const LaunchEnvironment& environment, size_t others, Body body) {
  try {
    auto result = call_within(store->getTimeout() + kStoreGrace, std::move(body));
    if (!result) throw std::runtime_error("timeout: the store does not answer");
    return std::move(*result);
  } catch (const util::Error&) {
    throw;
  } catch (const std::exception& error) {
    fail_at_the_store(environment, others, error);
  }
}

}  // namespace fsdp::comm
