#pragma once

// Unit: the parameters that are gathered, used and freed together.
//
//   kSharded --start_gather()--> kGathering --finish_gather()--> kUnsharded --reshard()--> kSharded
//
// Its gradients: attach (before backward of its stage), accumulate, start_reduction(), finish_reduction(),
// after which the mean over ranks has been added to the gradient of the shard. Everything that gathers or
// reduces is collective.
//
// A unit that is cut and replicated is reduced in two parts: a reduce-scatter among the ranks that share the
// unit, then an all-reduce of the result among those that hold the same shard. Each group has its own queue,
// and the second one's waits for the result of the first, so the first goes on with the next unit.
//
// Memory follows the order of the communication stream, not of the calls: the buffer of a gather that was
// issued ahead is taken when the collectives before it are done, and the input of a reduce-scatter is given
// back as soon as it has been sent. So the buffer of one reduction serves the gather behind it. Where a
// layout does not gather in place, the copy to the unsharded buffer is a task of that stream too.
//
// On a device, whose streams run behind the calls, memory is given back in the order of the caller's stream:
// by the caller, when that stream has waited for what still used it (Communicator::enqueue_release()). Who
// takes it then needs no further wait: tasks of the communication stream come after all that the caller's
// stream had been given.
//
// Shards in host memory reach the device, and gradients leave it, on streams of their own
// (shard/offload_streams.h): the gather waits for the copy of its shard, and no collective for the copy of a
// gradient. With gradients in host memory finish_reduction() makes the caller wait, too, until they are
// there.
//
// Where the ranks have memory in common, the output of an all-gather is one buffer for all of them. So what
// changes gathered parameters on one rank, in its forward or backward, may change them on others.

#include <functional>
#include <memory>
#include <string>

#include "comm/trace.h"
#include "shard/offload_streams.h"
#include "shard/process_groups.h"
#include "shard/traffic.h"
#include "shard/unit_options.h"
#include "shard/unit_storage.h"
#include "shard/wrap_policy.h"

namespace fsdp::shard {

/// What a unit is made with beside its plan.
struct UnitParts {
  std::shared_ptr<BufferPool> pool;
  std::shared_ptr<comm::Trace> trace = nullptr;  ///< hears of the unsharded buffers, if there is one
  Materialize materialize = {};
  std::shared_ptr<OffloadStreams> offload = nullptr;  ///< needed for what is kept in host memory
};

class Unit {
 public:
  enum class State { kSharded, kGathering, kUnsharded };

  /// Errors, and when it is collective, as for UnitStorage.
  Unit(const UnitPlan& plan, const ProcessGroups& groups, const UnitOptions& options, const UnitParts& parts);
  ~Unit();

  const std::string& name() const { return name_; }
  State state() const { return state_; }
  const UnitOptions& options() const { return options_; }
  const ProcessGroups& groups() const { return groups_; }
  UnitStorage& storage() { return storage_; }
  const UnitStorage& storage() const { return storage_; }
  /// Whether gathering it communicates.
  bool is_cut() const { return groups_.shard->world_size() > 1 && storage_.layout().numel() > 0; }

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
  /// Forgets what was accumulated and not reduced.
  void drop_gradients();
  /// Issues the reduction of the accumulated gradients: reduce-scatter, or all-reduce where every rank holds
  /// the whole unit, or one after the other.
  void start_reduction();
  /// Waits until the buffer of the whole unit's gradients has been given back. Only the all-reduce of a unit
  /// that is cut and replicated may be under way after it. No effect when there is none.
  void finish_sending();
  /// Waits until the gradient has left for the host, where that keeps it, so that its memory on the device is
  /// free; no effect while an all-reduce is under way.
  void finish_moving();
  /// Waits until the mean over ranks has been added to the shard's gradient; no effect when it has.
  void finish_reduction();
  /// Runs `use` on the offload thread when the reductions issued so far are in the shard's gradient, and
  /// that is there for the host. finish_reduction() waits for it and throws what it threw.
  void use_gradient(std::function<void()> use);

  /// The master weights of all ranks: [unsharded_numel] fp32 on the device of the parameters; the shard
  /// itself in a group of one. Collective, while the unit is sharded.
  at::Tensor gather_master_weights();

  const Traffic& traffic() const { return traffic_; }
  void reset_traffic() { traffic_ = {}; }

  /// Drops whatever a failed step left: waits for collectives under way (their errors were reported already),
  /// frees the buffers, forgets gradients that were not reduced.
  void reset();

 private:
  struct Reduction;
  void wait_for_gather();
  void move_to_host(const std::shared_ptr<Reduction>& job, std::shared_ptr<comm::Work> reduced);
  void note_buffer(bool allocated, BufferKind kind, int64_t bytes);
  std::unique_ptr<comm::Work> reduce_scatter(const std::shared_ptr<Reduction>& job);
  std::unique_ptr<comm::Work> all_reduce(const at::Tensor& tensor);

  std::string name_;
  ProcessGroups groups_;
  UnitOptions options_;
  std::shared_ptr<comm::Trace> trace_;
  std::shared_ptr<OffloadStreams> offload_;
  UnitStorage storage_;
  State state_ = State::kSharded;
  std::unique_ptr<comm::Work> gather_, unpacking_;
  /// Of gradients, in the order in which they end: the collective that takes the whole unit's buffer, the end
  /// of that buffer, the all-reduce of what it leaves, and the end of what was added to the shard's gradient.
  std::unique_ptr<comm::Work> collective_, sent_, all_reduce_, reduction_;
  std::shared_ptr<comm::Work> added_;  ///< the addition, for use_gradient()
  at::Tensor leaving_;                 ///< what is on its way to the host
  util::Event left_, on_host_;         ///< the end of that way, and of what the host does there
  Traffic traffic_;
};

}  // namespace fsdp::shard
