#pragma once

// The workers of this node in one round. They are started together or, with replicas, one by one and
// repeatedly. They are told to stop together, and the destructor ends them.

#include <chrono>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tools/launch/console.h"
#include "tools/launch/endpoint.h"
#include "tools/launch/options.h"
#include "tools/launch/orphan_guard.h"
#include "tools/launch/output_pump.h"
#include "tools/launch/run_folder.h"
#include "tools/launch/verdict.h"
#include "tools/launch/worker_environment.h"

namespace fsdp::launch {

/// Objects that outlive the workers' rounds.
struct GroupSurroundings {
  const LaunchOptions& options;
  Console& console;
  const RunFolder& folder;
  const OrphanGuard& guard;
};

class WorkerGroup {
 public:
  /// Opens the log files, but starts no worker. Throws Error(kIo), or Error(kUsage) for an impossible
  /// binding.
  WorkerGroup(const GroupSurroundings& surroundings, const NodePlacement& placement);
  /// Kills the workers that still run.
  ~WorkerGroup();
  WorkerGroup(const WorkerGroup&) = delete;
  WorkerGroup& operator=(const WorkerGroup&) = delete;

  /// Starts all workers. Throws like spawn().
  void start();
  /// Starts worker `rank` of the run with a channel to this launcher. Throws like spawn(). Requires: its
  /// process of an earlier incarnation has ended.
  void start(int rank, int incarnation);
  /// Sends SIGKILL to the worker if that incarnation runs.
  void kill(int rank, int incarnation);
  /// Sends a line to the worker's channel, if that incarnation runs.
  void tell(int rank, int incarnation, const std::string& line);

  struct ChannelLine {
    int rank;
    int incarnation;
    std::string text;
  };
  void add_channel_entries(std::vector<pollfd>& entries) const;
  /// The lines that have arrived over the channels.
  std::vector<ChannelLine> take_lines();

  int running() const { return running_; }
  /// Whether the process is a worker that has not been reaped.
  bool has_process(pid_t pid) const;
  int size() const { return placement_.workers_per_node; }
  OutputPump& pump() { return pump_; }

  /// Reaps ended workers. Returns the ends since the last call, with WorkerEnd::round = `round`.
  std::vector<WorkerEnd> reap(int round);
  /// All ends so far, with the last lines and messages read so far.
  std::vector<WorkerEnd> ends() const;
  /// Names of the workers that still run: "rank 3 (pid 4711)".
  std::vector<std::string> names_of_running() const;

  void send_to_all(int signal);
  /// Marks the workers that still run as told to end because another worker or a node has failed.
  void mark_told_after_failure();
  /// Sends a signal that the launcher has received to all workers. A program handles signals only once it has
  /// been loaded, and can then save or report that there was nothing to save. The signal is therefore held
  /// back for send_waiting() if it would end a worker that was started less than five seconds ago.
  void pass_on(int signal);
  void send_waiting();
  /// Milliseconds until send_waiting() must be called. -1 if no signal is held back.
  int milliseconds_to_wait() const;

 private:
  using Clock = std::chrono::steady_clock;

  struct WorkerProcess {
    int local_rank = 0;
    pid_t pid = -1;  ///< -1: not started yet
    std::string error_file{};
    Clock::time_point started{};
    int incarnation = 0;  ///< 0: without replicas
    std::optional<LineSocket> channel{};
    std::vector<int> waiting{};  ///< signals held back
    bool is_running = false;
    std::set<int> stop_signals_sent{};
    bool told_after_failure = false;
    WorkerEnd end{};
  };

  std::vector<OutputPlan> output_plans() const;
  void start_process(WorkerProcess& worker);
  WorkerProcess* find(int rank, int incarnation);
  void send(WorkerProcess& worker, int signal);
  bool may_send(const WorkerProcess& worker, int signal) const;

  const GroupSurroundings surroundings_;
  const NodePlacement placement_;
  const std::string host_;
  const std::vector<std::vector<int>> cpus_;  ///< CPUs of each worker
  OutputPump pump_;
  std::vector<WorkerProcess> workers_;
  int running_ = 0;
};

}  // namespace fsdp::launch
