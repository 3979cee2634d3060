#pragma once

// Starts the workers of this node and watches them until the last one has ended, round after round.
// Single-threaded: one poll() waits for signals, for the workers' output, for room on the console and for the
// other nodes, and the launcher sleeps otherwise.

#include <unistd.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launch/console.h"
#include "launch/options.h"
#include "launch/orphan_guard.h"
#include "launch/rendezvous.h"
#include "launch/run_folder.h"
#include "launch/signals.h"
#include "launch/verdict.h"
#include "launch/worker_group.h"

namespace fsdp::launch {

/// Where the workers' output goes.
struct ConsoleDescriptors {
  int out = STDOUT_FILENO;
  int err = STDERR_FILENO;
};

/// Runs the program in options.nproc_per_node processes on this node and returns the exit code of the whole
/// run (see judge()).
///
/// The first worker that fails, on any node, ends the round: the others get SIGTERM and,
/// shutdown_timeout_seconds later, SIGKILL. A worker that has only lost a peer leaves that one half a second
/// to end. After one that was pre-empted, as only a signal of its own could tell it, the others get SIGTERM
/// too, five seconds later and without a clock: they may be saving. Then all start again, up to max_restarts
/// times. The signals of options.signals are passed on to all workers; all but SIGUSR1 and SIGUSR2 start the
/// same clock, rule out a restart, and a second SIGINT or SIGTERM kills at once. Rank 0 has its launcher's
/// standard input in the first round, unless that is a terminal; the others have none. While it runs,
/// util::log_* goes to the console's stderr, between whole lines of the workers. When it returns, throws or
/// is killed, nothing that the workers started is left (see OrphanGuard). Throws Error: kUsage for bad
/// options and for a program that cannot be executed, kIo for log files, kUnexpected when the system refuses
/// processes or pipes. The calling process must be single-threaded.
int launch(const LaunchOptions& options, ConsoleDescriptors console = {});

/// The state of one launch().
class Supervisor {
 public:
  Supervisor(const LaunchOptions& options, ConsoleDescriptors console);
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  int run();

 private:
  using Clock = std::chrono::steady_clock;

  Verdict run_rounds();
  void run_round(NodePlacement placement);
  /// Waits for the next event and deals with all that came.
  void step();
  int milliseconds_to_wait() const;
  void handle_signal(int signal);
  void reap_workers();
  void tell_of_lost_peers();
  // By value: the reason may lie in stop_ or passing_on_, which these reset.
  void stop_workers(std::string reason);
  void pass_on_stop(std::string reason);
  void kill_if_overdue();
  void start_clock();
  void kill_all();
  void warn_of_lost_console();
  void report(const Verdict& verdict);
  int running() const { return group_ ? group_->running() : 0; }

  const LaunchOptions options_;
  SignalWatch signals_;
  Console console_;
  RunFolder folder_;
  OrphanGuard guard_;
  std::unique_ptr<Rendezvous> rendezvous_;
  std::unique_ptr<WorkerGroup> group_;  ///< of the present round
  int ends_seen_ = 0;                   ///< how often workers were found to have ended
  bool stopping_ = false;               ///< the workers were told to end, whoever wanted that
  int told_to_stop_ = 0;                ///< by this signal; another SIGINT or SIGTERM kills
  bool warned_of_console_ = false;
  std::optional<Clock::time_point> kill_at_;
  /// What is done unless something else stops the workers before.
  struct Due {
    Clock::time_point at;
    std::string reason;
  };
  std::optional<Due> stop_, passing_on_;
  std::vector<WorkerEnd> lost_peers_;  ///< ends that are consequences, until the other nodes are told
};

}  // namespace fsdp::launch
