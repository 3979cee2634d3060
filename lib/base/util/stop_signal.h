#pragma once

// Signals that ask a run to stop, which finishes its step and saves first.

#include <chrono>
#include <optional>

namespace fsdp::util {

/// Signals that come within this time are one request to stop: GNU timeout signals the program and then its
/// process group, and schedulers signal every process of a job, which then pass the signal on.
inline constexpr std::chrono::milliseconds kOneRequest{1000};

/// While one exists, the first SIGTERM, SIGINT, SIGHUP, SIGUSR1 or SIGUSR2 is only recorded; a SIGHUP that was
/// ignored before (nohup) stays ignored. At most one object per process; the destructor restores the former
/// handlers. A program whose exit code depends on the signal must not destroy it, or a signal during its exit
/// would kill it.
class StopSignal {
 public:
  /// What another SIGTERM or SIGINT does after kOneRequest. Under a launcher it may be the same signal again:
  /// SLURM and systemd signal every process of a job, and the launcher forwards its own. It can be ignored
  /// there, since a launcher kills processes that do not exit.
  enum class Repeated {
    kEndsTheProcess,  ///< by the default action
    kIsIgnored,
  };

  explicit StopSignal(Repeated repeated = Repeated::kEndsTheProcess);
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  /// The first signal. Thread-safe.
  static std::optional<int> received();

  /// For a program that a signal may reach while it starts: from now on signals are recorded, and repeated
  /// ones ignored. Needs no initialized object of the library, so it may run before main(). The StopSignal
  /// that is created later takes over the recorded signal; a program that creates none calls end_early().
  static void begin_early();
  /// Restores the handlers from before begin_early(), and raises the signal recorded since.
  static void end_early();
};

/// "SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2".
const char* stop_signal_name(int signal);

}  // namespace fsdp::util
