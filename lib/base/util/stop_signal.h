#pragma once

// Signals that request a run to stop after it has finished its step and saved.

#include <chrono>
#include <optional>

namespace fsdp::util {

/// Signals within this time count as one request to stop: GNU timeout signals the program and then its
/// process group, and schedulers signal every process of a job, which then forward the signal.
inline constexpr std::chrono::milliseconds kOneRequest{1000};

/// While a StopSignal exists, the first SIGTERM, SIGINT, SIGHUP, SIGUSR1 or SIGUSR2 is only recorded. A
/// SIGHUP that was ignored before (nohup) stays ignored. At most one object per process. The destructor
/// restores the former handlers. A program whose exit code depends on the signal must not destroy the object,
/// or a signal during its exit would kill it.
class StopSignal {
 public:
  /// Effect of another SIGTERM or SIGINT after kOneRequest. Under a launcher it may be the same signal again:
  /// SLURM and systemd signal every process of a job, and the launcher forwards its own. It can be ignored
  /// there, since a launcher kills processes that do not exit.
  enum class Repeated {
    kEndsTheProcess,  ///< the default action applies
    kIsIgnored,
  };

  explicit StopSignal(Repeated repeated = Repeated::kEndsTheProcess);
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  /// Returns the first signal received. Thread-safe.
  static std::optional<int> received();

  /// Begins to record signals and to ignore repeated ones, for a program that a signal may reach while it
  /// starts. Requires no initialized object of the library, so it may run before main(). A StopSignal created
  /// later takes over the recorded signal; a program that creates none calls end_early().
  static void begin_early();
  /// Restores the handlers from before begin_early(), and raises the recorded signal.
  static void end_early();
};

/// "SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2".
const char* stop_signal_name(int signal);

}  // namespace fsdp::util
