#pragma once

// Unit: the parameters that are gathered, used and freed together.
//
//   kSharded --start_gather()--> kGathering --finish_gather()--> kUnsharded --reshard()--> kSharded
//
// Its gradients are attached before the backward of its stage, accumulated, and reduced (reduce/reduction.h),
// after which the mean over ranks has been added to the shard's gradient. Everything that gathers or reduces
// is collective.
//
// lib/shard/README.md explains the order of the operations and of the memory that they use.

#include <memory>
#include <string>

#include "comm/api/trace.h"
#include "shard/engine/offload_streams.h"
#include "shard/engine/process_groups.h"
#include "shard/engine/reduce/reduction.h"
#include "shard/engine/unit_storage.h"
#include "shard/engine/wrap_policy.h"
#include "shard/units/unit_sizes.h"

namespace fsdp::shard {

/// Objects that the units of an engine share.
struct UnitParts {
  std::shared_ptr<BufferPool> pool;
  std::shared_ptr<comm::Trace> trace = nullptr;  ///< is notified of unsharded buffers; may be null
  Materialize materialize = {};
  std::shared_ptr<OffloadStreams> offload = nullptr;  ///< required with cpu_offload, except on the CPU
};

/// Parameters that are gathered, used and freed together (Engine::units()).
class Unit {
 public:
  enum class State { kSharded, kGathering, kUnsharded };

  /// Throws, and is collective, like the constructor of UnitStorage.
  Unit(const UnitPlan& plan, const ProcessGroups& groups, const UnitParts& parts);
  ~Unit();
  Unit(const Unit&) = delete;
  Unit& operator=(const Unit&) = delete;

  const std::string& name() const { return name_; }
  State state() const { return state_; }
  const UnitOptions& options() const { return options_; }
  const ProcessGroups& groups() const { return groups_; }
  UnitStorage& storage() { return storage_; }
  const UnitStorage& storage() const { return storage_; }
  Reduction& reduction() { return *reduction_; }
  OffloadStreams* offload() const { return offload_.get(); }
  /// Whether a gather of the unit communicates.
  bool is_cut() const { return groups_.shard->world_size() > 1 && storage_.layout().numel() > 0; }
  /// Whether a reduction of its gradient communicates.
  bool is_reduced_over_ranks() const { return is_cut() || groups_.across() != nullptr; }
  /// Whether this rank updates only a part of it.
  bool has_parts() const { return storage_.place().world_size > 1 && storage_.layout().numel() > 0; }

  /// Issues the all-gather between slices, which updates the slice's shard.
  void start_slice_gather();
  /// Waits for that all-gather; no effect if a gather within the slice, which waits for it, has been issued
  /// since.
  void finish_slice_gather();
  /// Issues the all-gather; no effect unless sharded. `pass` is "forward" or "backward", for messages.
  void start_gather(const char* pass);
  /// Waits until the parameters are gathered; issues the all-gather first if necessary.
  void finish_gather(const char* pass);
  /// Frees the gathered parameters; waits first for an all-gather under way.
  void reshard();

  /// Gives autograd a zeroed buffer for this unit's gradients; no effect when one is attached.
  void attach_gradients();
  /// Discards gradients that have not been reduced.
  void drop_gradients();

  /// Returns the weights of all ranks as they are kept: [unsharded_numel] in the type of the shard, on the
  /// device of the parameters. In a group of one it is the shard itself. Requires: a unit that is sharded.
  /// Collective.
  at::Tensor gather_weights() { return gather_whole(storage_.shard()); }
  /// Gathers another tensor that is cut like the shard: [shard_numel] of any type.
  at::Tensor gather_whole(const at::Tensor& own);

  const Traffic& traffic() const { return traffic_; }
  void count(const Traffic& traffic) { traffic_ += traffic; }
  void reset_traffic() { traffic_ = {}; }
  /// Notifies the trace that a buffer of this unit was allocated or freed.
  void note_buffer(bool allocated, BufferKind kind, int64_t bytes);

  /// Cleans up after a failed step: waits for collectives under way, ignoring their errors, frees the buffers
  /// and discards unreduced gradients.
  void reset();

 private:
  void wait_for_gather();

  std::string name_;
  ProcessGroups groups_;
  UnitOptions options_;
  std::shared_ptr<comm::Trace> trace_;
  std::shared_ptr<OffloadStreams> offload_;
  UnitStorage storage_;
  State state_ = State::kSharded;
  std::shared_ptr<comm::Work> slice_gather_;  ///< null once a gather within the slice waits for it
  std::unique_ptr<comm::Work> gather_, unpacking_;
  std::unique_ptr<Reduction> reduction_;
  Traffic traffic_;
};

}  // namespace fsdp::shard
