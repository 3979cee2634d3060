#include "run/train/watchdog.h"

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/util/error.h"
#include "base/util/file.h"
#include "base/util/log.h"
#include "base/util/stop_signal.h"
#include "base/util/text.h"

namespace fsdp::train {
namespace {

constexpr double kPeriod = 1, kShortPeriod = 0.25, kPeriodAtStart = 0.05;  // seconds
constexpr double kPatienceAfterStop = 5, kGraceOfCollective = 10;          // seconds

}  // namespace

std::filesystem::path activity_file_of_launcher() {
  const char* error_file = std::getenv("TORCHELASTIC_ERROR_FILE");
  if (error_file == nullptr || *error_file == '\0') return {};
  return std::filesystem::path(error_file).parent_path() / "activity.json";
}

launch::Standing standing_of(const comm::Activity& activity) {
  const comm::Activity::Snapshot now = activity.snapshot();
  return {.doing = describe(now),
          .collective = now.collective,
          .last_collective = now.last,
          .step = now.step,
          .collectives = now.collectives,
          .seconds = now.seconds};
}

Watchdog::Watchdog(std::shared_ptr<comm::Activity> activity, WatchdogOptions options)
    : activity_(std::move(activity)), options_(std::move(options)), thread_([this] { watch(); }) {}

Watchdog::~Watchdog() {
  {
    std::lock_guard lock(mutex_);
    ended_ = true;
  }
  ending_.notify_all();
  thread_.join();
}

void Watchdog::report_failure(const std::string& message) {
  std::lock_guard lock(mutex_);
  if (std::exchange(failed_, true)) return;
  write_report(message);
}

void Watchdog::watch() {
  std::unique_lock lock(mutex_);
  const double later = options_.on_look ? kShortPeriod : kPeriod;
  double period = kPeriodAtStart;
  while (!ending_.wait_for(lock, std::chrono::duration<double>(period), [this] { return ended_; })) {
    if (options_.on_look) options_.on_look();
    if (!failed_) look(period);
    period = activity_->snapshot().steps_begun == 0 ? kPeriodAtStart : later;
  }
}

void Watchdog::look(double seconds_since_last) {
  comm::Activity::Snapshot now = activity_->snapshot();
  const std::optional<int> stop = util::StopSignal::received();
  if (stop) seconds_since_stop_ += seconds_since_last;
  if (stop && now.steps_begun == 0 && options_.on_stop_before_training) {
    return std::exchange(options_.on_stop_before_training, nullptr)(*stop);
  }
  if (seconds_since_stop_ > kPatienceAfterStop && !std::exchange(told_of_stop_, true)) {
    write_report(concat("rank ", options_.rank, " was told to stop and is still ", describe(now)));
  }
  if (now.collective.empty()) {
    told_of_collective_ = false;
    bool began = now.step > 0 && now.collectives > 0;
    if (!began || now.seconds < options_.timeout_seconds || now.step_seconds < options_.timeout_seconds ||
        std::exchange(told_of_step_, now.step) == now.step) {
      return;
    }
    std::string message =
        concat("rank ", options_.rank, " makes no progress: ", describe(now),
               "; other ranks wait for it, at most comm.timeout_seconds = ", options_.timeout_seconds);
    util::log_warning(message);
    write_report(message);
  } else if (now.seconds > options_.timeout_seconds + kGraceOfCollective &&
             !std::exchange(told_of_collective_, true)) {
    std::string message = concat("rank ", options_.rank, " is stuck ", describe(now),
                                 ", beyond comm.timeout_seconds = ", options_.timeout_seconds,
                                 "; another process of the run has stopped or is unreachable");
    util::log_error(message);
    failed_ = true;
    write_report(message);
    if (options_.on_stuck_collective) options_.on_stuck_collective();
  }
}

void Watchdog::write_report(const std::string& message) {
  if (options_.report_file.empty()) return;
  nlohmann::json report = launch::to_json(standing_of(*activity_));
  report["message"] = util::printable(message);
  report["rank"] = options_.rank;
  report["pid"] = ::getpid();
  try {
    util::write_file_atomically(options_.report_file, report.dump() + "\n");
  } catch (const util::Error& error) {
    util::log_debug(error.what());  // the failure itself is reported in any case
  }
}

}  // namespace fsdp::train
