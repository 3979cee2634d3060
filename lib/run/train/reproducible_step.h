#pragma once

// The step of training.reproducible = "world_size", whose result does not depend on the number of ranks:
// losses and gradients are summed sample by sample, in the order of the samples. A rank can therefore go on
// where the ranks of another group were broken off (run/replicas), and can finish a step whose last
// collective has failed.

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "run/train/begun_step.h"
#include "run/train/train_step.h"

namespace fsdp::train {

/// The places of this rank's samples among those of a step.
struct SamplePlaces {
  int64_t rank = 0, ranks = 1;   ///< among the ranks with batches of their own
  bool batch_is_sample = false;  ///< data.max_tokens: the rows of a batch count as one sample
};

class ReproducibleStep final : public TrainStep {
 public:
  /// The engine's ShardOptions have sums_by_sample. `leave_requested`: whether this rank wants the group to
  /// be left after this step; called once a step. Null: the group is never left, and steps cannot be
  /// continued elsewhere.
  ReproducibleStep(const StepParts& parts, const StepOptions& options, const SamplePlaces& places,
                   std::function<bool()> leave_requested = nullptr);

  /// Whether run() has failed in the last collective of its step. No rank learns anything there that its
  /// update depends on, so ranks that came through it have updated their shards, and the others must be able
  /// to. Not collective.
  bool can_finish() const { return pending_.has_value(); }
  /// Does the rest of that step. Not collective, unless it throws.
  StepResult finish();
  /// The position of that step.
  const StepPosition& pending_position() const { return pending_->position; }

  /// Returns the micro-batches that are done of the step in which run() has failed; nullopt if there are
  /// none, if counts vary or without `leave_requested`. Resets the engine. Not collective.
  std::optional<BegunStep> begun();
  /// Lets the next run() do the rest of this step. Requires: the same number of leaves on every rank.
  void continue_with(BegunStep begun) { begun_ = std::move(begun); }

 private:
  at::Tensor accumulate_gradients(StepBatches& batches, ArrivingGradients& arriving) override;
  void share_loss(double local_loss, StepResult& result) override;
  StepResult conclude(StepUpdate step, ArrivingGradients* arriving) override;
  std::unique_ptr<comm::Work> share_losses(const at::Tensor& losses);

  SamplePlaces places_;
  std::function<bool()> leave_requested_;
  /// Losses of the step under way, by position; those of other ranks are 0 until they are shared.
  at::Tensor losses_;
  double targets_ = 1;  ///< targets of the step under way, over all ranks; at least 1
  /// A collective of the step under way, and the leaves after it.
  struct SharedLosses {
    std::unique_ptr<comm::Work> work;
    int64_t leaves;
  };
  std::vector<SharedLosses> shared_losses_;
  std::optional<BegunStep> begun_;     ///< the first part of the step under way, or of the next one
  int64_t leaves_ = 0;                 ///< leaves of the step under way; 0: there is none
  int64_t first_leaf_ = 0;             ///< the first leaf that is not in the part that was begun elsewhere
  std::optional<StepUpdate> pending_;  ///< the step under way, once every rank can finish it alone
};

}  // namespace fsdp::train
