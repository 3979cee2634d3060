#pragma once

// A run that is told to stop ends its step and saves first.

#include <optional>

namespace fsdp::util {

/// While one lives, the first SIGTERM, SIGINT or SIGUSR1 is only remembered. One at a time a process; the
/// destructor restores what was before.
class StopSignal {
 public:
  /// What another SIGTERM or SIGINT does. Under a launcher it may be the first one come a second time: SLURM
  /// and systemd signal every process of a job, and the launcher passes on what it got. A launcher kills what
  /// does not end, so nothing is lost by not heeding it.
  enum class Repeated {
    kEndsTheProcess,  ///< as if nobody had handled it
    kIsIgnored,
  };

  explicit StopSignal(Repeated repeated = Repeated::kEndsTheProcess);
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  /// The signal that came first. Any thread may ask.
  static std::optional<int> received();
};

/// "SIGTERM", "SIGINT", "SIGUSR1".
const char* stop_signal_name(int signal);

}  // namespace fsdp::util
