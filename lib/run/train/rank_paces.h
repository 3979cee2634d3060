#pragma once

// RankPaces: measures how fast each rank computes, and compares the ranks. A rank's own time is that of its steps less
// what its training thread was blocked by collectives (Communicator::waited_seconds()); its pace is that time
// per floating-point operation of the batches that it was given.

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "comm/api/communicator.h"
#include "run/train/slow_ranks.h"
#include "run/train/step_meter.h"
#include "setup/config/config.h"

namespace fsdp::train {

/// Products of a rank's batches by plan::flops_a_token(), which grows with the length of rows or documents.
class BatchFlops {
 public:
  /// `a_token`: in rows of data.sequence_length tokens; 0 (unknown): tokens stand for operations.
  BatchFlops(const config::Config& config, double a_token);

  double of(const data::Batch& batch) const;

 private:
  int64_t row_tokens_;
  double a_token_, a_pair_ = 0;  ///< a token attends to so many, at most
};

class RankPaces {
 public:
  /// Null where there is nothing to compare: one rank, training.slow_rank_factor = 0, a device whose waits are
  /// not measured. `batches`, whose work it counts, must outlive the result. Collective.
  static std::unique_ptr<RankPaces> make(const config::Config& config,
                                         std::shared_ptr<comm::Communicator> communicator,
                                         TimedBatches& batches, double flops_a_token);

  /// Around all that a rank does for a step. The first step does not count: it touches memory for the first time.
  void begin_step();
  void end_step();

  /// Compares the steps since the last call; one small collective. Returns what is to be said, the same on
  /// every rank.
  std::vector<SlowRanks::Message> compare(int64_t step);
  /// Null before the first comparison.
  const SlowRanks* compared() const { return compared_ ? &slow_ : nullptr; }

 private:
  using Clock = std::chrono::steady_clock;
  RankPaces(std::shared_ptr<comm::Communicator> communicator, const TimedBatches& batches, SlowRanks slow);

  std::shared_ptr<comm::Communicator> communicator_;
  const TimedBatches& batches_;
  SlowRanks slow_;
  bool warm_ = false, compared_ = false;
  Clock::time_point began_;
  double waited_before_ = 0, work_before_ = 0;
  // Since the last comparison:
  int64_t steps_ = 0;
  double own_seconds_ = 0, work_ = 0;
};

}  // namespace fsdp::train
