#pragma once

// Watchdog: reports where a rank is stuck when the run makes no progress.

#include <condition_variable>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "comm/api/activity.h"
#include "tools/launch/verdict.h"

namespace fsdp::train {

struct WatchdogOptions {
  int rank = 0;
  double timeout_seconds = 60;  ///< comm.timeout_seconds: time for which the other ranks wait for this one
  /// The file of the report, a JSON object whose "doing" is a phrase; empty: no report is written.
  std::filesystem::path report_file;
  /// Called when a collective lasts longer than its own time-out, because it is stuck in the kernel.
  std::function<void()> on_stuck_collective = nullptr;
  /// Called once, if not null, when a stop is requested before this process has begun a step: nothing is lost
  /// if the process ends at once.
  std::function<void(int signal)> on_stop_before_training = nullptr;
  /// Called at every look, then four times a second or more often.
  std::function<void()> on_look = nullptr;
};

launch::Standing standing_of(const comm::Activity& activity);

/// Returns the file in which fsdp-launch looks for the report, beside TORCHELASTIC_ERROR_FILE; empty without
/// such a launcher.
std::filesystem::path activity_file_of_launcher();

/// A thread that looks at the rank's activity every second, and more often before the first step. It reacts
/// to these:
///
/// - A stop was requested and no step has begun: calls on_stop_before_training(). The main thread may be
///   waiting for other processes in a library that does not react to signals.
/// - This rank computes for longer than the time-out: warns and writes a report, once a step. The other ranks
///   give up waiting for this rank, and only this rank can report what delayed it.
/// - A stop was requested five seconds ago and the step has not ended: writes a report, in case SIGKILL
///   follows.
/// - A collective lasts ten seconds longer than the time-out: writes a report, and calls
///   on_stuck_collective().
class Watchdog {
 public:
  Watchdog(std::shared_ptr<comm::Activity> activity, WatchdogOptions options);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Writes the report of a failure. It replaces reports of mere slowness, but not the report of an earlier
  /// failure.
  void report_failure(const std::string& message);

 private:
  void watch();
  void look(double seconds_since_last);
  void write_report(const std::string& message);

  std::shared_ptr<comm::Activity> activity_;
  WatchdogOptions options_;
  std::mutex mutex_;
  std::condition_variable ending_;
  bool ended_ = false, failed_ = false, told_of_stop_ = false, told_of_collective_ = false;
  int64_t told_of_step_ = -1;
  double seconds_since_stop_ = 0;
  std::thread thread_;
};

}  // namespace fsdp::train
