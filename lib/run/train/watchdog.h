#pragma once

// Reports where a rank is stuck when the run makes no progress.

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
  double timeout_seconds = 60;  ///< comm.timeout_seconds: how long the other ranks wait for this one
  /// The file of the report, a JSON object whose "doing" is a phrase; empty: no report is written.
  std::filesystem::path report_file;
  /// Called when a collective has outlived its own time-out, as one that is stuck in the kernel does.
  std::function<void()> on_stuck_collective = nullptr;
  /// Called once, if not null, when a stop is requested before this process has begun a step, whatever it is
  /// doing: nothing is lost if it ends there and then.
  std::function<void(int signal)> on_stop_before_training = nullptr;
  /// Called at every look, then four times a second or more often.
  std::function<void()> on_look = nullptr;
};

launch::Standing standing_of(const comm::Activity& activity);

/// Where fsdp-launch looks for the report: beside TORCHELASTIC_ERROR_FILE; empty without such a launcher.
std::filesystem::path activity_file_of_launcher();

/// A thread that looks at the rank's activity every second, and more often before the first step.
///
/// - A stop was requested and no step has begun: on_stop_before_training(). The main thread may be waiting
///   for other processes in a library that does not react to signals.
/// - This rank computes for longer than the time-out: a warning and a report, once a step. The others give up
///   waiting for it, and only this rank can say what delayed it.
/// - A stop was requested five seconds ago and the step has not ended: a report, in case SIGKILL follows.
/// - A collective is under way for ten seconds longer than the time-out: a report, and on_stuck_collective().
class Watchdog {
 public:
  Watchdog(std::shared_ptr<comm::Activity> activity, WatchdogOptions options);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Writes the report of a failure. The first failure's report stays; it replaces those of mere slowness.
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
