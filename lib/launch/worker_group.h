#pragma once

// The workers of this node in one round: started together, told to stop together, and gone when the object
// is.

#include <chrono>
#include <set>
#include <string>
#include <vector>

#include "launch/console.h"
#include "launch/options.h"
#include "launch/orphan_guard.h"
#include "launch/output_pump.h"
#include "launch/run_folder.h"
#include "launch/verdict.h"
#include "launch/worker_environment.h"

namespace fsdp::launch {

/// What outlives the rounds.
struct GroupSurroundings {
  const LaunchOptions& options;
  Console& console;
  const RunFolder& folder;
  const OrphanGuard& guard;
};

class WorkerGroup {
 public:
  /// Opens the log files; starts nothing yet. Throws Error(kIo), Error(kUsage) for a binding that does not
  /// fit.
  WorkerGroup(const GroupSurroundings& surroundings, const NodePlacement& placement);
  /// Kills what still runs.
  ~WorkerGroup();
  WorkerGroup(const WorkerGroup&) = delete;
  WorkerGroup& operator=(const WorkerGroup&) = delete;

  /// Throws as spawn() does.
  void start();

  int running() const { return running_; }
  int size() const { return placement_.workers_per_node; }
  OutputPump& pump() { return pump_; }

  /// The workers that have ended since the last call; `round` is noted in their ends.
  std::vector<WorkerEnd> reap(int round);
  /// All ends so far, with last lines and messages as far as they have come.
  std::vector<WorkerEnd> ends() const;
  /// Those that still run, as "rank 3 (pid 4711)".
  std::vector<std::string> names_of_running() const;

  void send_to_all(int signal);
  /// To all, a signal that the launcher was sent. It waits for a worker that was started less than a second
  /// ago and would be ended by it, because a program handles signals only once it has been loaded, and then
  /// it may save or say that there was nothing to save. send_waiting() sends what is due.
  void pass_on(int signal);
  void send_waiting();
  /// Until send_waiting() is to be called; -1: nothing waits.
  int milliseconds_to_wait() const;

 private:
  using Clock = std::chrono::steady_clock;

  struct Worker {
    int local_rank;
    pid_t pid;
    std::string error_file;
    Clock::time_point started{};
    std::vector<int> waiting{};  ///< signals
    bool is_running = true;
    std::set<int> stop_signals_sent{};
    WorkerEnd end{};
  };

  std::vector<OutputPlan> output_plans() const;
  void send(Worker& worker, int signal);
  bool may_send(const Worker& worker, int signal) const;

  const GroupSurroundings surroundings_;
  const NodePlacement placement_;
  const std::string host_;
  const std::vector<std::vector<int>> cpus_;  ///< for each worker
  OutputPump pump_;
  std::vector<Worker> workers_;
  int running_ = 0;
};

}  // namespace fsdp::launch
