#pragma once

// Starts the workers of this node and watches them until the last one has ended. Single-threaded: one poll()
// waits for signals, for the workers' output and for room on the console, and the launcher sleeps otherwise.

#include <unistd.h>

#include <chrono>
#include <optional>
#include <set>
#include <vector>

#include "launch/console.h"
#include "launch/options.h"
#include "launch/output_pump.h"
#include "launch/signals.h"
#include "launch/verdict.h"

namespace fsdp::launch {

/// Where the workers' output goes.
struct ConsoleDescriptors {
  int out = STDOUT_FILENO;
  int err = STDERR_FILENO;
};

/// Runs the program in options.nproc_per_node processes and returns the exit code of the whole (see judge()).
///
/// The first worker that fails ends the run: the others get SIGTERM and, shutdown_timeout_seconds later,
/// SIGKILL. SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2 are passed on to all workers; the first three start
/// the same clock, and a second SIGINT or SIGTERM kills at once.
/// Worker 0 has the launcher's standard input, unless that is a terminal; the others have none.
/// While it runs, util::log_* goes to the console's stderr, between whole lines of the workers.
/// Throws Error before anything is left running: kUsage for bad options and for a program that cannot be
/// executed, kIo for log files, kUnexpected when the system refuses processes or pipes. The calling process
/// must be single-threaded.
int launch(const LaunchOptions& options, ConsoleDescriptors console = {});

/// The state of one launch().
class Supervisor {
 public:
  Supervisor(const LaunchOptions& options, ConsoleDescriptors console);
  /// Kills what still runs.
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  int run();

 private:
  using Clock = std::chrono::steady_clock;

  struct Worker {
    int rank;
    pid_t pid;
    bool is_running = true;
    std::set<int> stop_signals_sent{};
  };

  void start_workers();
  /// Waits for the next event and deals with all that came.
  void step();
  int milliseconds_to_wait() const;
  void handle_signal(int signal);
  void reap_workers();
  void stop_others(const WorkerEnd& failed);
  void kill_if_overdue();
  void send(Worker& worker, int signal);
  void send_to_all(int signal);
  void start_clock();
  void kill_all();
  void warn_of_lost_console();
  void report(const Verdict& verdict);
  bool any_running() const { return running_ > 0; }

  const LaunchOptions options_;
  SignalWatch signals_;
  Console console_;
  OutputPump pump_;
  std::vector<Worker> workers_;
  int running_ = 0;
  std::vector<WorkerEnd> ends_;
  int round_ = 0;
  bool stopping_ = false;      ///< the workers were told to end, whoever wanted that
  bool told_to_stop_ = false;  ///< by SIGINT or SIGTERM: the next one kills
  bool warned_of_console_ = false;
  std::optional<Clock::time_point> kill_at_;
};

}  // namespace fsdp::launch
