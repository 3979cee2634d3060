#pragma once

// A line on the terminal while plans are made.

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/util/error.h"
#include "base/util/progress_bar.h"

namespace fsdp::apps {

/// A line on stderr's terminal, from a second after its begin until its end, while a plan is made.
class PlanningLine {
 public:
  explicit PlanningLine(util::ProgressOutput output) {
    if (output.stream == nullptr || output.columns == 0) return;
    thread_ = std::jthread([this, output](const std::stop_token& stop) { draw(output, stop); });
  }

 private:
  void draw(const util::ProgressOutput& output, const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    int seconds = 0;
    const auto second_passes = [&] {
      return !ended_.wait_for(lock, stop, std::chrono::seconds(1), [&] { return stop.stop_requested(); });
    };
    while (second_passes()) util::draw_over(*output.stream, util::concat("planning: ", ++seconds, " s"));
    if (seconds > 0) util::draw_over(*output.stream, "");
  }

  std::mutex mutex_;
  std::condition_variable_any ended_;
  std::jthread thread_;
};

}  // namespace fsdp::apps
