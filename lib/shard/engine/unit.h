#pragma once

// Unit: the parameters that are gathered, used and freed together.
//
//   kSharded --start_gather()--> kGathering --finish_gather()--> kUnsharded --reshard()--> kSharded
//
// Its gradients are attached before the backward of its stage, accumulated, and reduced: start_reduction(),
// finish_reduction(), after which the mean over ranks has been added to the shard's gradient. Everything that
// gathers or reduces is collective.
//
// A unit that is cut and replicated is reduced in two parts: a reduce-scatter among the ranks that share the
// unit, then an all-reduce of the result among those that hold the same shard. Each group has its own queue,
// and only the second group's waits for the reduce-scatter, so the first continues with the next unit.
//
// With hybrid_optimizer = "global" the second part is a reduce-scatter, and before the first gather after an update
// the shards of all slices are gathered into the slice's shard, start_slice_gather(), in the queue of that
// second group. Every gather within the slice waits for it there, so nothing else does.
//
// Units may be cut over different groups (ShardOptions::wrapped), and the reduce-scatters of a group may have
// a communicator of their own (reduce_scatter_group). Each communicator has a queue; what follows about order
// is true of the operations of one queue.
//
// Memory follows the order of the communication stream, not of the calls: the buffer of an all-gather issued
// ahead is taken when the collectives before it are done, and the input of a reduce-scatter is given back as
// soon as it has been sent. So the buffer of one reduction serves the all-gather behind it in the same queue.
// An all-gather of another queue needs a buffer beside it (step_formula.h counts both). Where a layout does
// not gather in place, the copy to the unsharded buffer is also a task of that stream.
//
// On a device, whose streams run behind the calls, memory is given back in the order of the caller's stream:
// by the caller, when that stream has waited for the last use (Communicator::enqueue_release()). The next
// user need not wait: tasks of the communication stream run after everything issued before them to the stream
// that is current at the call. That is the caller's, except for gathers in forward, where it is a stream that
// has waited for the last release of memory (Engine::released_).
//
// Shards in host memory reach the device, and gradients leave it, on streams of their own
// (shard/engine/offload_streams.h): an all-gather waits for the copy of its shard, and no collective waits for the
// copy of a gradient. With gradients in host memory, finish_reduction() also waits until they have arrived.
//
// Where the ranks share memory, the output of an all-gather is one buffer for all of them: a rank that
// changes gathered parameters in its forward or backward may change them on other ranks.

#include <functional>
#include <memory>
#include <string>

#include "comm/api/mesh.h"
#include "comm/api/trace.h"
#include "shard/engine/offload_streams.h"
#include "shard/engine/sample_tree.h"
#include "shard/engine/unit_storage.h"
#include "shard/engine/wrap_policy.h"
#include "shard/units/unit_sizes.h"

namespace fsdp::shard {

/// The groups with which a rank communicates; group_sizes.h says which ranks they have.
struct ProcessGroups {
  std::shared_ptr<comm::Communicator> world;
  std::shared_ptr<comm::Communicator> shard;  ///< the ranks over which each unit is cut for its passes
  /// The same ranks, for the reduce-scatters of gradients: `shard`, or with reduce_scatter_group a
  /// communicator with a queue of its own.
  std::shared_ptr<comm::Communicator> reduce_scatter;
  std::shared_ptr<comm::Communicator> replicate;  ///< the ranks with the same shard; null: this one only
  /// The ranks that divide the shard of a pass among themselves; null: it is not divided.
  std::shared_ptr<comm::Communicator> slices = nullptr;
  int summed = 1;  ///< ranks over which gradients are summed; over the others the mean is taken

  GroupSizes sizes() const;
  /// Parts of a slice's shard follow each other.
  ShardPlace place() const;
  /// The group of the second part of a reduction; null: there is none.
  comm::Communicator* across() const { return slices ? slices.get() : replicate.get(); }

  // Of all parts of a unit, [place().world_size * n], in two collectives where there are slices, of which the one
  // between slices moves the fewest bytes that it can. Collective.

  /// Fills `whole`, in which this rank has written its own part.
  void gather(const at::Tensor& whole, const comm::CallSite& site) const;
  /// output [n] = the sum of this rank's part of `whole`.
  void reduce(const at::Tensor& output, const at::Tensor& whole, const comm::CallSite& site) const;

  int replicas() const { return replicate ? replicate->world_size() : 1; }
  int replica_rank() const { return replicate ? replicate->rank() : 0; }
  /// Of the sum over all ranks that share a unit.
  double divisor() const { return static_cast<double>(place().world_size) * replicas() / summed; }
};

/// The groups for a strategy, with one for both kinds of collectives. Not collective.
ProcessGroups process_groups(const comm::Mesh& mesh, util::Named<Strategy> strategy,
                             util::Named<HybridOptimizer> optimizer = HybridOptimizer::kReplicated);

/// What the units of an engine share.
struct UnitParts {
  std::shared_ptr<BufferPool> pool;
  std::shared_ptr<comm::Trace> trace = nullptr;  ///< is notified of unsharded buffers; may be null
  Materialize materialize = {};
  std::shared_ptr<OffloadStreams> offload = nullptr;  ///< required with cpu_offload, except on the CPU
};

class Unit {
 public:
  enum class State { kSharded, kGathering, kUnsharded };

  /// Throws, and is collective, as the constructor of UnitStorage.
  Unit(const UnitPlan& plan, const ProcessGroups& groups, const UnitParts& parts);
  ~Unit();

  const std::string& name() const { return name_; }
  State state() const { return state_; }
  const UnitOptions& options() const { return options_; }
  const ProcessGroups& groups() const { return groups_; }
  UnitStorage& storage() { return storage_; }
  const UnitStorage& storage() const { return storage_; }
  /// Whether gathering it communicates.
  bool is_cut() const { return groups_.shard->world_size() > 1 && storage_.layout().numel() > 0; }
  /// Whether reducing its gradient communicates.
  bool is_reduced_over_ranks() const { return is_cut() || groups_.across() != nullptr; }
  /// Whether this rank updates only a part of it.
  bool has_parts() const { return storage_.place().world_size > 1 && storage_.layout().numel() > 0; }

  /// Issues the all-gather between slices of what the ranks of a slice gather.
  void start_slice_gather();
  /// Waits for it; no effect where a gather within the slice has been issued since, which waits for it.
  void finish_slice_gather();
  /// Issues the all-gather; no effect unless sharded. `pass` is "forward" or "backward", for messages.
  void start_gather(const char* pass);
  /// Waits until the parameters are there; issues the all-gather first if necessary.
  void finish_gather(const char* pass);
  /// Frees the gathered parameters; waits first for an all-gather under way.
  void reshard();

  /// Gives autograd a zeroed buffer for this unit's gradients; no effect when one is attached.
  void attach_gradients();
  /// With sums_by_sample: the next reductions are those of a step; the shard's gradient appears after the last. `begun`:
  /// the sums of the leaves before step.span.first.
  void begin_sample_sums(const SampleStep& step, SampleSums begun = {});
  /// With SampleStep::may_break_off: the sums after the newest reduction, unless that was the last, and after up to
  /// kSumsBefore before it, oldest first. After reset().
  std::vector<SampleSums> begun_sums() const;
  /// Whether none of these reductions is missing, unless all are.
  bool has_all_rounds() const { return round_ == 0 || round_ == step_.rounds; }
  /// Discards gradients that have not been reduced.
  void drop_gradients();
  /// Over which ranks gradients are reduced.
  enum class Reach {
    kSlice,  ///< those that share the unit; the shard's gradient is a sum, of which replicas have others
    kAll,
  };
  /// Issues the reduction of the accumulated gradients: a reduce-scatter, an all-reduce where every rank
  /// holds the whole unit, or both; with slices, a second reduce-scatter in place of the all-reduce. The all-reduce
  /// includes sums of earlier reductions with kSlice. kSlice: if adds_before_all_reduce() (shard/units/unit_sizes.h).
  void start_reduction(Reach reach);
  /// Waits until the buffer of the whole unit's gradients has been given back; only the second collective of a
  /// unit that is cut and replicated, or cut again, may still be under way. No effect when there is no such
  /// buffer.
  void finish_sending();
  /// Waits until the gradient has been reduced over slices and copied to the host, if it is kept there, so that
  /// memory on the device is free; no effect while an all-reduce is under way.
  void finish_moving();
  /// Waits until the mean over ranks has been added to the shard's gradient; no effect without a reduction.
  void finish_reduction();
  /// Whether finish_reduction() has something to wait for, where gradients stay on the device.
  bool is_being_reduced() const { return reduction_ != nullptr; }
  /// Runs `use` on the offload thread when the reductions issued so far are in the shard's gradient and the
  /// host can read it. finish_reduction() waits for `use` and rethrows its exception.
  void use_gradient(std::function<void()> use);

  /// The weights of all ranks as they are kept: [unsharded_numel] in the type of the shard on the device of the
  /// parameters; in a group of one, the shard itself. Collective; the unit must be sharded.
  at::Tensor gather_weights() { return gather_whole(storage_.shard()); }
  /// Like gather_weights(), of another tensor that is cut as the shard is: [shard_numel] of any type.
  at::Tensor gather_whole(const at::Tensor& own);

  const Traffic& traffic() const { return traffic_; }
  void reset_traffic() { traffic_ = {}; }

  /// Cleans up after a failed step: waits for collectives under way, ignoring their errors, frees the buffers
  /// and discards unreduced gradients.
  void reset();

 private:
  struct Reduction;
  void wait_for_gather();
  // With sums_by_sample (unit_samples.cpp).
  void start_sample_reduction();
  void reduce_slots_across(Reduction& job, const SampleRound& round);
  void add_nodes(const Reduction& job, const SampleRound& round);
  void move_to_host(const std::shared_ptr<Reduction>& job, std::shared_ptr<comm::Work> reduced);
  void note_buffer(bool allocated, BufferKind kind, int64_t bytes);
  /// The collective that reduces the buffer of the whole unit, and the second one, if there is one.
  std::unique_ptr<comm::Work> reduce_whole(const std::shared_ptr<Reduction>& job, Reach reach);
  std::unique_ptr<comm::Work> reduce_across(const std::shared_ptr<Reduction>& job);
  std::unique_ptr<comm::Work> reduce_scatter(comm::Communicator& group, const std::shared_ptr<Reduction>& job,
                                             const at::Tensor& input);

  std::string name_;
  ProcessGroups groups_;
  UnitOptions options_;
  std::shared_ptr<comm::Trace> trace_;
  std::shared_ptr<OffloadStreams> offload_;
  UnitStorage storage_;
  State state_ = State::kSharded;
  std::shared_ptr<comm::Work> slice_gather_;  ///< for which no gather within the slice waits yet
  std::unique_ptr<comm::Work> gather_, unpacking_;
  /// Stages of a reduction, in the order in which they end: the collective that consumes the whole unit's
  /// buffer, the release of that buffer, the reduction over replicas or slices, the release of the input of the
  /// latter, and the release of the result after its addition to the shard's gradient.
  std::unique_ptr<comm::Work> collective_, sent_, across_, across_sent_, reduction_;
  std::shared_ptr<comm::Work> added_;  ///< the addition, for use_gradient()
  at::Tensor leaving_;                 ///< the gradient that is being copied to the host
  SampleStep step_;                    ///< with sums_by_sample
  int64_t round_ = 0;                  ///< of it: reductions so far
  SampleSums sums_;                    ///< of those that have ended
  /// Before the newest of them, oldest first. When a peer hangs, ranks end in different rounds: a reduction that waits for
  /// it holds up those behind it, while ranks whose counterparts still answer go on.
  std::vector<SampleSums> before_;
  static constexpr size_t kSumsBefore = 3;
  util::Event left_, on_host_;  ///< the end of that copy, and of the host's work on the gradient
  Traffic traffic_;
};

}  // namespace fsdp::shard
