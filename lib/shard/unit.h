#pragma once

// Unit: the parameters that are gathered, used and freed together.
//
//   kSharded --start_gather()--> kGathering --finish_gather()--> kUnsharded --reshard()--> kSharded
//
// Its gradients: attach (before backward of its stage), accumulate, start_reduction(), finish_reduction(),
// after which the mean over ranks has been added to the gradient of the shard. Everything that gathers or
// reduces is collective.

#include <memory>
#include <string>

#include "comm/trace.h"
#include "shard/process_groups.h"
#include "shard/unit_storage.h"
#include "shard/wrap_policy.h"

namespace fsdp::shard {

class Unit {
 public:
  enum class State { kSharded, kGathering, kUnsharded };

  /// `trace`, if any, hears of the unsharded buffers.
  Unit(const UnitPlan& plan, const ProcessGroups& groups, std::shared_ptr<comm::Trace> trace = nullptr);

  const std::string& name() const { return name_; }
  State state() const { return state_; }
  UnitStorage& storage() { return storage_; }
  const UnitStorage& storage() const { return storage_; }

  /// Issues the all-gather; no effect unless sharded. `pass` is "forward", "backward" or "other", for
  /// messages.
  void start_gather(const char* pass);
  /// Waits until the parameters are there; starts the gather first when nobody has.
  void finish_gather(const char* pass);
  /// Frees the gathered parameters; waits first for a gather that is under way.
  void reshard();

  /// Gives autograd a zeroed buffer to accumulate this unit's gradients into; no effect when there is one
  /// already.
  void attach_gradients();
  bool gradients_are_attached() const { return storage_.gradients_are_attached(); }
  /// Issues the reduce-scatter of the accumulated gradients; the all-reduce where every rank holds the whole
  /// unit.
  void start_reduction();
  /// Waits for it and adds the mean over ranks to the shard's gradient.
  void finish_reduction();

  /// Unsharded parameter and gradient buffers that exist now.
  int64_t live_bytes() const;

  /// Drops whatever a failed step left: waits for collectives under way (their errors were reported already),
  /// frees the buffers, forgets gradients that were not reduced.
  void reset();

 private:
  bool is_cut() const { return groups_.shard->world_size() > 1; }
  void wait_for_gather();
  void note_buffer(bool allocated, const char* kind);

  std::string name_;
  ProcessGroups groups_;
  std::shared_ptr<comm::Trace> trace_;
  UnitStorage storage_;
  State state_ = State::kSharded;
  std::unique_ptr<comm::Work> gather_;
  std::unique_ptr<comm::Work> reduction_;
  at::Tensor reduction_input_, reduction_output_;
};

}  // namespace fsdp::shard
