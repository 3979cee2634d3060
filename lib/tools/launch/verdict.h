#pragma once

// How workers ended, what they were doing, and which worker's end explains the end of the run.

#include <sys/types.h>

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tools/launch/process.h"

namespace fsdp::launch {

/// A worker's own report of what it was doing when the run stopped (run/train/watchdog.h).
struct Standing {
  std::string doing{};  ///< a phrase: "in all_gather of root (forward), step 3, for 5.0 s"
  /// Collective in progress: "all_gather of root (forward)"; empty: the worker computes.
  std::string collective{};
  std::string last_collective{};  ///< collective that ended last; empty: none
  int64_t step = 0;               ///< current step; 0: before the first
  int64_t collectives = -1;       ///< number of ended collectives; -1: unknown
  double seconds = 0;             ///< time since the collective began, or since the last collective ended

  bool is_reported() const { return !doing.empty(); }
  bool is_in_collective() const { return is_reported() && !collective.empty(); }
};

/// Reads an untrusted report or message. Cuts texts and makes them one printable line. Treats members of a
/// wrong type as absent.
Standing standing_from(const nlohmann::json& report);

nlohmann::json to_json(const Standing& standing);

/// `text` as one printable line of about `most_bytes` at most; "..." marks a cut.
std::string one_line(std::string_view text, size_t most_bytes);

/// How one worker ended.
struct WorkerEnd {
  int rank = 0;
  pid_t pid = -1;  ///< -1: only the rank is known
  ExitStatus status;
  int round = 0;                      ///< equal for ends seen at the same time, higher for later ends
  std::set<int> stop_signals_sent{};  ///< signals that the launcher sent to end the worker
  /// Whether the launcher told it to end because another worker or node failed.
  bool told_after_failure = false;
  std::string host{};
  std::vector<std::string> last_lines{};  ///< last lines of its output
  std::string message{};                  ///< message in its error file
  Standing standing{};                    ///< standing in its activity file
  std::string log_path{};
  int incarnation = 0;  ///< how often its replica had been started, in a run with replicas
};

enum class EndKind {
  kFailed,    ///< failed by itself: a cause
  kPeerLost,  ///< exit code 5, which a worker returns if another worker is gone: a consequence
  kStopped,   ///< ended by a signal of the launcher, or with 75 after another's failure: a consequence
  kFinished,  ///< exit code 0, or 75: pre-empted, after saving if there was anything to save
};

EndKind kind_of(const WorkerEnd& end);
/// Whether the worker ended with 75 after a request from outside. 75 after the failure of another worker only
/// means that the rest was stopped. A batch system that took it for a saved run would repeat the failure for
/// ever.
bool was_preempted(const WorkerEnd& end);

struct Verdict {
  int exit_code = 0;
  std::optional<WorkerEnd> culprit{};  ///< worker that explains the end; none if all finished
  std::string cause{};                 ///< sentence, if something other than a worker ended the run

  bool is_failure() const { return !cause.empty() || (culprit && kind_of(*culprit) != EndKind::kStopped); }
};

/// Judges a run by the ends of its workers. The culprit is the first worker that failed by itself, else the
/// first other failure, with the lowest rank among ends of one round. The run's exit code is the culprit's
/// exit code, or 128 + its signal. If all finished, it is 75 if any was pre-empted, else 0. It is also 75 if
/// a worker was pre-empted and the others only lost it.
Verdict judge(const std::vector<WorkerEnd>& ends);

/// Whether a restart of all workers may end differently. Exit codes 2 (command line or config) and 8
/// (diverged) would recur.
bool may_end_differently(const Verdict& verdict);

/// Text for a status: "ended with exit code 3", "was ended by SIGKILL".
std::string ending(const ExitStatus& status);

/// Text for a worker: "rank 3 (pid 4711 on host0)", or "rank 3" if nothing else is known.
std::string name_of(const WorkerEnd& end);

}  // namespace fsdp::launch
