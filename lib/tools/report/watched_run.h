#pragma once

// Reads the state of a run under way from its folder and the processes of this host.

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "tools/report/metrics_tail.h"
#include "tools/report/run_record.h"

namespace fsdp::report {

/// A process of the run on this host.
struct RankProcess {
  int64_t rank = 0;
  pid_t pid = 0;
  char state = '?';       ///< state in /proc/PID/stat: R runs, S sleeps, T is stopped
  double cpu_share = -1;  ///< share of one core since the last poll(); negative: not known yet
  int64_t resident_bytes = 0;
  int64_t cpu_ticks = 0;
};

struct RunEvent {
  int64_t step = 0;
  std::string text{};
};

/// The state that the view shows.
struct WatchedState {
  RunRecord run;
  bool has_metrics = false;
  int64_t total_steps = 0;           ///< 0: unknown
  int64_t world_size = 0;            ///< 0: unknown
  std::string host{};                ///< host of rank 0
  bool is_here = false;              ///< whether rank 0 runs on this host
  std::vector<RankProcess> ranks{};  ///< processes on this host, in the order of ranks
  std::vector<RunEvent> events{};    ///< events in the order of the steps
  double seconds_since_line = 0;
  bool ended = false;

  int64_t step() const;  ///< step of the last line; 0: none
};

/// Text for the state of the run: "finished", "running", "not running" or the host on which it runs.
std::string status_of(const WatchedState& state);

class WatchedRun {
 public:
  using Clock = std::chrono::steady_clock;

  explicit WatchedRun(std::filesystem::path folder);

  /// Updates the state. A run has ended if its last step is logged and its processes are gone, or if its
  /// processes have been gone for ten seconds, within which a launcher would have restarted them. Processes
  /// on another host or of another user cannot be seen, so such a run ends with its last step.
  const WatchedState& poll(Clock::time_point now = Clock::now());

 private:
  void add_line(const std::string& line);
  void read_settings();
  void find_checkpoints();
  void find_processes(Clock::time_point now);
  void add_event(int64_t step, std::string text);

  WatchedState state_;
  MetricsTail tail_;
  std::set<std::string> checkpoints_;
  double best_validation_ = 0, skipped_ = 0;  ///< best_validation_ is valid after the first validation
  Clock::time_point processes_seen_, last_look_;
};

}  // namespace fsdp::report
