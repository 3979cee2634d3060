#pragma once

// RankPaces: measures how fast each rank computes, and compares the ranks. A rank's own time is the time of
// its steps less the time for which collectives blocked its training thread (Communicator::waited_seconds()).
// Its pace is its own time per floating-point operation of its batches.

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "comm/api/communicator.h"
#include "run/train/slow_ranks.h"
#include "run/train/step_meter.h"
#include "setup/config/config.h"

namespace fsdp::train {

/// Counts the operations of a rank's batches by plan::flops_a_token(), which grows with the length of rows or
/// documents.
class BatchFlops {
 public:
  /// `a_token`: operations for a token in rows of data.sequence_length tokens; 0 (unknown): tokens are
  /// counted instead.
  BatchFlops(const config::Config& config, double a_token);

  double of(const data::Batch& batch) const;

 private:
  int64_t row_tokens_;
  double a_token_, a_pair_ = 0;  ///< operations of a token: constant, and for each token of its row
};

class RankPaces {
 public:
  /// Returns null if there is nothing to compare: one rank, training.slow_rank_factor = 0, or a device whose
  /// waits are not measured. Counts the work of `batches`, which must outlive the result. Collective.
  static std::unique_ptr<RankPaces> make(const config::Config& config,
                                         std::shared_ptr<comm::Communicator> communicator,
                                         TimedBatches& batches, double flops_a_token);

  /// Called around all work of a rank for a step. The first step does not count, because it touches memory
  /// for the first time.
  void begin_step();
  void end_step();

  /// Compares the ranks in the steps since the last call, by one small collective. Returns the messages to
  /// log, the same on every rank.
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
  // Sums since the last comparison:
  int64_t steps_ = 0;
  double own_seconds_ = 0, work_ = 0;
};

}  // namespace fsdp::train
