#pragma once

// A run that is told to stop ends its step and saves first.

#include <optional>

namespace fsdp::util {

/// While one lives, the first SIGTERM, SIGINT or SIGUSR1 is only remembered; another SIGTERM or SIGINT ends
/// the process as if nobody had handled it. One at a time a process; the destructor restores what was before.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  /// The signal that came first. Any thread may ask.
  static std::optional<int> received();
};

/// "SIGTERM", "SIGINT", "SIGUSR1".
const char* stop_signal_name(int signal);

}  // namespace fsdp::util
