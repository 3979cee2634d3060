#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "comm/api/mesh.h"
#include "run/train/begun_step.h"
#include "run/train/training_record.h"
#include "tools/plan/memory.h"

namespace fsdp::train {

/// Key of a record that belongs to a replica which has no state of its own yet.
inline constexpr const char* kJoined = "joined";

/// Host memory that outlives a Trainer: the Trainer takes the run's state from it in place of a checkpoint,
/// and leaves its state in it, where a run goes on with other ranks (run/replicas).
class RunMemory {
 public:
  virtual ~RunMemory() = default;

  /// RunState::moment() at which the run continues from memory; -1: it starts as its config says.
  virtual int64_t state_step() const = 0;
  /// Shapes that this process has computed so far: KnownParts::buffers.
  virtual std::map<int64_t, plan::BufferShapes>& buffer_shapes() = 0;

  /// Fills `state` with the state after state_step(), from this process or another, and returns its record.
  /// Collective over the ranks of the mesh. `before_transfer`: called if this rank sends or receives.
  virtual nlohmann::json restore(const TrainingState& state, const comm::Mesh& mesh,
                                 const std::function<void()>& before_transfer) = 0;
  /// Returns the part of the next step that all ranks have; nullopt if one has nothing. Collective.
  virtual std::optional<BegunStep> begun(comm::Communicator& world) const = 0;

  /// Copies the state at a moment. `record`: training_record(), with what else is to be kept.
  virtual void keep(const TrainingState& state, int64_t step, nlohmann::json record) = 0;
  /// Adds the part of the next step that is done.
  virtual void keep_begun(BegunStep begun) = 0;
  /// Adds the state at the next moment.
  virtual void keep_next(const TrainingState& state, nlohmann::json record) = 0;
};

}  // namespace fsdp::train
