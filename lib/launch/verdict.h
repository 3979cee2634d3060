#pragma once

// Which worker's end explains how the run ended.

#include <sys/types.h>

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launch/process.h"

namespace fsdp::launch {

/// How one worker ended.
struct WorkerEnd {
  int rank = 0;
  pid_t pid = -1;
  ExitStatus status;
  int round = 0;  ///< ends seen at the same time have the same round; later ones a higher one
  std::set<int> stop_signals_sent{};  ///< what the launcher had sent it by then to end it
  std::string host{};
  std::vector<std::string> last_lines{};  ///< of its output
  std::string message{};                  ///< from its error file
  Standing standing{};                    ///< from its activity file: what it was doing
  std::string log_path{};
};

enum class EndKind {
  kFailed,    ///< of its own accord: a cause
  kPeerLost,  ///< exit code 5, which a worker gives when another one is gone: a consequence
  kStopped,   ///< by a signal that the launcher sent: a consequence
  kFinished,  ///< exit code 0, or 75: pre-empted after saving, or before there was anything to save
};

EndKind kind_of(const WorkerEnd& end);
/// Exit code 75.
bool was_preempted(const WorkerEnd& end);

struct Verdict {
  int exit_code = 0;
  std::optional<WorkerEnd> culprit{};  ///< the worker to name; none when all finished
  std::string cause{};                 ///< in place of a worker: what ended the run, as a sentence

  bool is_failure() const { return !cause.empty() || (culprit && kind_of(*culprit) != EndKind::kStopped); }
};

/// The first that failed, of its own accord if there is such a one; the lowest rank among ends of one round.
/// Its exit code, or 128 + its signal, is the run's. If all finished: 75 if any was pre-empted, else 0; also
/// 75 if nothing worse happened than that others lost the one that was.
Verdict judge(const std::vector<WorkerEnd>& ends);

/// "ended with exit code 3", "was ended by SIGKILL".
std::string ending(const ExitStatus& status);

/// "rank 3 (pid 4711 on host0)".
std::string name_of(const WorkerEnd& end);

}  // namespace fsdp::launch
