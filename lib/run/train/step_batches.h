#pragma once

// The micro-batches of one optimizer step on this rank, each with its share of the step's loss.

#include <cstdint>
#include <vector>

#include "data/loading/loader.h"

namespace fsdp::shard {
class Engine;
}

namespace fsdp::train {

struct StepPosition {
  int64_t step = 1;                 ///< 1-based, for messages
  int64_t first_global_sample = 0;  ///< the run's sample position before the step
  double lr = 0.0;
  int64_t samples = 0;        ///< samples of the step over all ranks, for messages; 0: unknown
  int64_t micro_batches = 0;  ///< micro-batches of the step; 0: StepOptions::gradient_accumulation_steps
  bool reads_outcome = true;  ///< false: loss and norm are wanted later, or not at all
};

struct MicroBatch {
  data::Batch batch;
  double divisor = 1;  ///< divides the loss, so that ranks average the sums over their micro-batches
  /// Divides a sum over data::Batch::preferred_targets likewise, whose mean is then that of the global batch.
  double targets_divisor = 1;
};

class StepBatches {
 public:
  /// `counts_vary`: the number of targets that count differs among batches. All batches are then read here,
  /// because the share of each depends on all of them. Collective in that case.
  StepBatches(const data::BatchSource& source, const shard::Engine& engine, bool counts_vary,
              const StepPosition& position);

  int64_t size() const { return position_.micro_batches; }
  const StepPosition& position() const { return position_; }
  /// Returns micro-batch i, once. `skipped_samples`: samples of the step before this rank's first
  /// micro-batch.
  MicroBatch take(int64_t i, int64_t skipped_samples = 0);

  /// Whether no target of any rank counts, so that there is nothing to compute.
  bool are_without_targets() const { return counts_vary_ && counted_ == 0; }
  int64_t counted() const { return counted_; }  ///< targets that count, over all ranks; 0 unless counts vary
  int64_t tokens() const { return tokens_; }    ///< inputs that are no padding, likewise

 private:
  /// Collective.
  void read_all(const shard::Engine& engine);

  const data::BatchSource& source_;
  bool counts_vary_;
  StepPosition position_;
  std::vector<MicroBatch> read_;  ///< all micro-batches, if counts vary
  int64_t counted_ = 0, tokens_ = 0;
};

}  // namespace fsdp::train
