#pragma once

// FaultHistory: how long a run has trained over all of its starts, and how often it has failed. The file
// starts.json of its output folder records them, so that the interval of saves can follow the faults that a
// run meets. A start that neither ended nor was stopped, such as one that was killed, has failed.
//
// Used on rank 0. A file that cannot be read counts as none, and one that cannot be written changes nothing:
// the history is worth less than the run. Not thread-safe.

#include <cstdint>
#include <filesystem>
#include <future>
#include <string>

#include "base/util/work_queue.h"
#include "tools/simulate/failures.h"

namespace fsdp::train {

class FaultHistory {
 public:
  /// Reads the history of the run in `folder`. `begins`: whether a start begins, rather than one goes on.
  FaultHistory(std::filesystem::path folder, bool begins);
  /// Waits until all is written.
  ~FaultHistory();

  /// Records that this start has trained for so long. What it trains after the last record is lost to the
  /// history if it fails.
  void note(double seconds_of_start);
  /// Records that this start has not failed, and waits until that is written.
  void end(double seconds_of_start);

  int64_t faults() const { return faults_; }
  /// Seconds of training over all starts.
  double seconds() const { return seconds_before_ + seconds_of_start_; }

 private:
  void write();

  std::filesystem::path path_;
  int64_t faults_ = 0;
  double seconds_before_ = 0, seconds_of_start_ = 0;
  bool is_running_ = false;
  std::future<void> last_;           ///< of the record that is being written
  util::WorkQueue<void> writer_{1};  ///< lets no step wait for the disk
};

/// Seconds of training in which one fault is assumed beside those of the history: a day, or less for so many
/// ranks that Llama 3's 419 interruptions in 54 days of 16,384 GPUs would be more (The Llama 3 Herd of
/// Models, 2024, section 3.3.4).
double assumed_seconds_of_a_fault(int64_t ranks);

/// Faults at the mean rate of the history and of the one that is assumed. `save_seconds`: for which a save
/// delays training.
simulate::Faults expected_faults(const FaultHistory& history, int64_t ranks, double save_seconds);

/// "a save delays training by 1.2 s, and the run has failed 2 times in 6h 12m"
std::string cost_text(const FaultHistory& history, double save_seconds);

/// Text about another interval of saves, "" if the present interval loses less than a hundredth of the time
/// more than the best one.
std::string advice_text(const FaultHistory& history, const simulate::Faults& faults, double interval_seconds,
                        double step_seconds);

}  // namespace fsdp::train
