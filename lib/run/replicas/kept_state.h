#pragma once

// KeptState: this rank's part of the run's state, as a checkpoint would hold it, in host memory. A process of
// a run with replicas keeps it from one epoch of the launcher (tools/launch/epoch.h) to the next. A process
// that lacks its part gets it from the rank in another replica that has the same part.

#include "run/train/run_memory.h"
#include "state/checkpoint/state_slices.h"
#include "tools/launch/epoch.h"

namespace fsdp::train {

/// Empty in a new process. Not thread-safe.
class KeptState final : public RunMemory {
 public:
  /// The step after which the kept state is; -1: there is none.
  int64_t step() const { return now_ ? now_->step : -1; }
  /// Whether the state after the next step is kept too.
  bool can_finish_step() const { return next_.has_value(); }
  /// Number of micro-batches of the next step that are done, over all ranks.
  int64_t begun_leaves() const { return begun_ ? begun_->leaves : 0; }

  /// Keeps the state from which the epoch goes on, or nothing if this rank lacks it.
  void begin(const launch::Epoch& epoch);
  /// Frees the memory.
  void forget() {
    now_.reset();
    begun_.reset();
  }

  int64_t state_step() const override { return epoch_.step; }
  std::map<int64_t, plan::BufferShapes>& buffer_shapes() override { return buffer_shapes_; }
  nlohmann::json restore(
      const TrainingState& state, const comm::Mesh& mesh,
      const std::function<void()>& before_transfer = [] {}) override;
  std::optional<BegunStep> begun(comm::Communicator& world) const override;
  void keep(const TrainingState& state, int64_t step, nlohmann::json record) override;
  void keep_begun(BegunStep begun) override { begun_ = std::move(begun); }
  void keep_next(const TrainingState& state, nlohmann::json record) override;

 private:
  struct Moment {
    int64_t step;
    nlohmann::json record;
    checkpoint::HostCopies tensors;
  };
  static Moment copy_of(const TrainingState& state, int64_t step, nlohmann::json record);

  launch::Epoch epoch_;
  std::optional<Moment> now_, next_;
  std::optional<BegunStep> begun_;  ///< part of the step after now_
  std::map<int64_t, plan::BufferShapes> buffer_shapes_;
};

}  // namespace fsdp::train
