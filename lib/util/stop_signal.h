#pragma once

// A run that is told to stop ends its step and saves first.

#include <optional>

namespace fsdp::util {

/// While one lives, the first SIGTERM, SIGINT or SIGUSR1 is only remembered. One at a time a process; the
/// destructor restores what was before. A program whose exit code tells how it was stopped never destroys it:
/// a signal that came while it ends would end it otherwise.
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

  /// For a program whose start takes longer than a signal may come: from here on the signals are remembered,
  /// the repeated ones too. Needs no initialized object of the library, so it may run before main(). The
  /// StopSignal that is made later takes over what came; a program that makes none calls end_early().
  static void begin_early();
  /// Restores what was before begin_early(), and a signal that has come since takes effect.
  static void end_early();
};

/// "SIGTERM", "SIGINT", "SIGUSR1".
const char* stop_signal_name(int signal);

}  // namespace fsdp::util
