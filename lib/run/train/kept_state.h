#pragma once

// What a process of a run with replicas keeps of the run, in host memory, while it goes from one epoch of the
// run (tools/launch/epoch.h) to the next: what a checkpoint would hold of this rank's part. A process that lacks it
// gets it from the rank in another replica that has the same part.

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "comm/api/mesh.h"
#include "run/train/begun_step.h"
#include "run/train/training_record.h"
#include "state/checkpoint/state_slices.h"
#include "tools/launch/epoch.h"
#include "tools/plan/memory.h"

namespace fsdp::train {

/// Empty in a new process. Not thread-safe.
class KeptState {
 public:
  /// The state is that after this step; -1: there is none.
  int64_t step() const { return now_ ? now_->step : -1; }
  /// That after the next step is there too.
  bool can_finish_step() const { return next_.has_value(); }
  /// As many micro-batches of the next step are done, those of other ranks too.
  int64_t begun_leaves() const { return begun_ ? begun_->leaves : 0; }

  /// Those that this process has computed so far: KnownParts::buffers.
  std::map<int64_t, plan::BufferShapes>& buffer_shapes() { return buffer_shapes_; }

  /// The state that the epoch goes on from, or none if this rank lacks it.
  void begin(const launch::Epoch& epoch);
  /// Frees the memory.
  void forget() {
    now_.reset();
    begun_.reset();
  }
  /// Copies a state, for the time after the epoch. `record`: training_record(), with what else is to be kept.
  void keep(const TrainingState& state, int64_t step, nlohmann::json record);
  /// Adds what is done of the next step.
  void keep_begun(BegunStep begun) { begun_ = std::move(begun); }
  /// Adds that after the next step.
  void keep_next(const TrainingState& state, nlohmann::json record);

  /// Fills `state`, from this process or another, and returns the record. Collective over the epoch's ranks,
  /// which are those of the mesh; epoch.step is not -1. `before_transfer`: called if this rank sends or receives.
  nlohmann::json restore(
      const TrainingState& state, const launch::Epoch& epoch, const comm::Mesh& mesh,
      const std::function<void()>& before_transfer = [] {});
  /// What all ranks have of the next step; nullopt if one has nothing. Collective.
  std::optional<BegunStep> begun(comm::Communicator& world) const;

 private:
  struct Moment {
    int64_t step;
    nlohmann::json record;
    checkpoint::HostCopies tensors;
  };
  static Moment copy_of(const TrainingState& state, int64_t step, nlohmann::json record);

  std::optional<Moment> now_, next_;
  std::optional<BegunStep> begun_;  ///< after now_
  std::map<int64_t, plan::BufferShapes> buffer_shapes_;
};

}  // namespace fsdp::train
