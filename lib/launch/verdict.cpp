#include "launch/verdict.h"

#include <algorithm>
#include <tuple>

#include "launch/signals.h"
#include "util/error.h"

namespace fsdp::launch {

bool was_preempted(const WorkerEnd& end) { return end.status.code() == util::kExitPreempted; }

EndKind kind_of(const WorkerEnd& end) {
  const int code = end.status.code();
  if (code == 0 || was_preempted(end)) return EndKind::kFinished;
  // A shell that runs the real worker passes the signal on as an exit code.
  if (end.stop_signals_sent.contains(code - 128)) return EndKind::kStopped;
  if (code == static_cast<int>(util::ErrorKind::kPeerLost)) return EndKind::kPeerLost;
  return EndKind::kFailed;
}

Verdict judge(const std::vector<WorkerEnd>& ends) {
  const auto order = [](const WorkerEnd& end) { return std::tuple(kind_of(end), end.round, end.rank); };
  const auto first = std::min_element(ends.begin(), ends.end(),
                                      [&](const auto& a, const auto& b) { return order(a) < order(b); });
  if (first == ends.end()) return {};
  const bool preempted = std::any_of(ends.begin(), ends.end(), was_preempted);
  const bool explained = preempted && kind_of(*first) == EndKind::kPeerLost;
  if (kind_of(*first) != EndKind::kFinished && !explained) {
    return {.exit_code = first->status.code(), .culprit = *first};
  }
  return {.exit_code = preempted ? util::kExitPreempted : 0};
}

std::string ending(const ExitStatus& status) {
  if (status.signal == 0) return util::concat("ended with exit code ", status.exit_code);
  return util::concat("was ended by ", signal_name(status.signal));
}

std::string name_of(const WorkerEnd& end) {
  return util::concat("rank ", end.rank, " (pid ", end.pid, end.host.empty() ? "" : " on ", end.host, ")");
}

}  // namespace fsdp::launch
