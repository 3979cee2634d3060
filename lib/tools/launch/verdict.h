#pragma once

// How workers ended, where they stood then, and which worker's end explains how the run ended.

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

/// What a worker was doing when the run stopped, as it reported itself (run/train/watchdog.h).
struct Standing {
  std::string doing{};            ///< a phrase: "in all_gather of root (forward), step 3, for 5.0 s"
  std::string collective{};       ///< in progress: "all_gather of root (forward)"; empty: it computes
  std::string last_collective{};  ///< the one that ended last; empty: none has
  int64_t step = 0;               ///< 0: before the first
  int64_t collectives = -1;       ///< ended so far; -1: unknown
  double seconds = 0;             ///< since the collective began, or since the last one ended

  bool is_reported() const { return !doing.empty(); }
  bool is_in_collective() const { return is_reported() && !collective.empty(); }
};

/// From an untrusted report or message: texts are cut and made one printable line; members of a wrong type are
/// treated as absent.
Standing standing_from(const nlohmann::json& report);

nlohmann::json to_json(const Standing& standing);

/// `text` as one printable line of about `most_bytes` at most; "..." marks a cut.
std::string one_line(std::string_view text, size_t most_bytes);

/// How one worker ended.
struct WorkerEnd {
  int rank = 0;
  pid_t pid = -1;  ///< -1: nothing is known of it but its rank
  ExitStatus status;
  int round = 0;                      ///< equal for ends seen at the same time, higher for later ones
  std::set<int> stop_signals_sent{};  ///< by the launcher, to end it
  bool told_after_failure = false;    ///< the launcher told it to end because another worker or node failed
  std::string host{};
  std::vector<std::string> last_lines{};  ///< of its output
  std::string message{};                  ///< from its error file
  Standing standing{};                    ///< from its activity file
  std::string log_path{};
  int incarnation = 0;  ///< with replicas: of its replica, how often that had been started
};

enum class EndKind {
  kFailed,    ///< of its own accord: a cause
  kPeerLost,  ///< exit code 5, which a worker returns when another one is gone: a consequence
  kStopped,   ///< by a signal that the launcher sent, or with 75 after another's failure: a consequence
  kFinished,  ///< exit code 0, or 75: pre-empted, after saving if there was anything to save
};

EndKind kind_of(const WorkerEnd& end);
/// Exit code 75, by a request from outside: 75 after the failure of another worker means only that the rest was
/// stopped, and a batch system that takes it for a saved run would start the failure again for ever.
bool was_preempted(const WorkerEnd& end);

struct Verdict {
  int exit_code = 0;
  std::optional<WorkerEnd> culprit{};  ///< the worker that explains it; none when all finished
  std::string cause{};                 ///< a sentence, if something other than a worker ended the run

  bool is_failure() const { return !cause.empty() || (culprit && kind_of(*culprit) != EndKind::kStopped); }
};

/// The culprit is the first worker that failed of its own accord, else the first other failure; the lowest rank
/// among ends of one round. Its exit code, or 128 + its signal, is the run's. If all finished: 75 if any was
/// pre-empted, else 0. Also 75 if one was pre-empted and the others only lost it.
Verdict judge(const std::vector<WorkerEnd>& ends);

/// Whether all workers may be started again after this verdict. Exit codes 2 (command line or config) and 8
/// (diverged) would come again.
bool may_end_differently(const Verdict& verdict);

/// "ended with exit code 3", "was ended by SIGKILL".
std::string ending(const ExitStatus& status);

/// "rank 3 (pid 4711 on host0)"; "rank 3" if nothing else is known.
std::string name_of(const WorkerEnd& end);

}  // namespace fsdp::launch
