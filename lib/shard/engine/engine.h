#pragma once

// Engine: the units of a model that is sharded over the ranks of a communicator. A Schedule
// (shard/units/schedule.h) decides the order in which units are gathered, freed and reduced; the engine executes
// its commands.
//
//   auto engine = fully_shard(*model, options, communicator);   // shard/engine/fully_shard.h
//   loss = f(model->forward(x)); loss.backward();      // gathers, frees and reduces as it goes
//   clip_grad_norm(*engine, 1.0); optimizer over engine->units(); engine->zero_gradients();
//
// One thread per rank. All ranks must call forward, backward and everything marked collective in the same
// order.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/tensor/stream.h"
#include "comm/api/communicator.h"
#include "model/nn/hooked.h"
#include "shard/engine/buffer_pool.h"
#include "shard/engine/reduce/sample_tree.h"
#include "shard/engine/tensor_slice.h"
#include "shard/engine/unit.h"
#include "shard/engine/wrap_policy.h"
#include "shard/units/options.h"
#include "shard/units/schedule.h"

namespace fsdp::shard {

/// A part of one parameter that lies in this rank's shard of its unit.
struct Segment {
  std::string name;            ///< of the parameter
  std::vector<int64_t> shape;  ///< of the whole parameter
  bool requires_grad = true;
  size_t unit = 0;           ///< index into Engine::units()
  size_t parameter = 0;      ///< index into the parameters of the unit's layout
  util::Rectangle range{};   ///< of the parameter; may be empty
  int64_t shard_offset = 0;  ///< of its elements, contiguous in the unit's shard

  int64_t numel() const { return range.numel(); }
};

/// Elements of segments.
inline int64_t numel_of(std::span<const Segment> segments) {
  int64_t numel = 0;
  for (const Segment& segment : segments) numel += segment.numel();
  return numel;
}

/// The hooks of units, by the module that each is attached to.
using HookPlaces = std::map<nn::Hookable*, std::shared_ptr<nn::CallHook>>;

/// The rest of an engine from which another takes over.
struct HandedOver {
  HookPlaces places;
  std::vector<std::unique_ptr<Unit>> units;  ///< only their weights are of use: Unit::gather_weights()
};

class Engine final : public std::enable_shared_from_this<Engine>, private CommandReader {
 public:
  /// Called by fully_shard(), which attaches the hooks. Collective if the source of `materialize` is, and
  /// with reduce_scatter_group.
  Engine(const ShardOptions& options, const comm::Mesh& mesh, const std::vector<UnitPlan>& plans,
         const std::shared_ptr<comm::Trace>& trace = nullptr, const Materialize& materialize = {});

  const ShardOptions& options() const { return options_; }
  /// All ranks of the run.
  comm::Communicator& communicator() const { return *groups_.world; }
  /// The groups of the units that the model's strategy cuts; see Unit::groups() for the others.
  const ProcessGroups& groups() const { return groups_; }
  const comm::MeshShape& mesh() const { return mesh_.shape(); }
  /// The ranks that have parts of the same layers (ShardOptions::parts); between steps, at rest.
  const std::shared_ptr<comm::Communicator>& model_group() const { return mesh_.model(); }

  /// The root first, then units of replicated and of fp32 parameters, then the others in the order of the
  /// modules.
  const std::vector<std::unique_ptr<Unit>>& units() const { return units_; }

  /// This rank's parts of every parameter, unit by unit. A parameter has at least one, which may be empty; its
  /// parts follow each other here and, without a gap, in the shard. Ranks may have different numbers of them.
  const std::vector<Segment>& segments() const { return segments_; }
  /// The same, by parameter; alike on every rank but for the parts.
  std::vector<std::span<const Segment>> segments_by_parameter() const;

  /// The model's buffers, except what its modules compute (model/nn/buffers.h): contiguous, and whole on every rank,
  /// which may change its own in forward.
  const std::vector<NamedTensor>& buffers() const { return buffers_; }

  /// Off: backward passes leave gradients unsharded and unreduced, and the first pass after it is on again
  /// reduces the sum. Saves the reductions at the cost of the memory of the whole gradient. See NoSync.
  void set_requires_gradient_sync(bool sync) { schedule_.set_requires_gradient_sync(sync); }
  bool requires_gradient_sync() const { return schedule_.requires_gradient_sync(); }
  /// Off: backward passes reduce gradients within slices only, and the first pass after it is on again adds the sums of
  /// all replicas (hybrid_shard, no_shard, replicated parameters). Saves the all-reduces of the other passes, and costs no
  /// memory. Without effect on units whose gradients move to host memory, with hybrid_optimizer = "global" and with
  /// sums_by_sample. (PyTorch's FSDPModule.set_requires_all_reduce().)
  void set_requires_all_reduce(bool all_reduce) { schedule_.set_requires_all_reduce(all_reduce); }
  /// Whether a backward pass without either has left gradients unreduced.
  bool has_unreduced_gradients() const { return schedule_.has_unreduced_gradients(); }

  /// Calls `use(i)` for each unit i with a gradient in the next backward passes, when that is complete. `use` may
  /// write the unit's shard, which the pass no longer needs, and free the gradient. Where the model computes on the
  /// host, the calls run between those of backward, on its thread. On a device, gradients have to move to host memory
  /// (move_grads_to_cpu of all units), and the calls run in order of arrival on a thread of the engine, beside the
  /// rest of the pass. All calls have returned when backward() returns. An exception skips the remaining calls, and
  /// backward() throws its message with the unit's name. null waits for a running call and ends the use. See
  /// GradientUse.
  void set_gradient_use(std::function<void(size_t unit)> use);

  /// Discards all gradients, before the first micro-batch of a step.
  void zero_gradients();
  /// With ShardOptions::sums_by_sample, after zero_gradients(): the micro-batches to come. `begun`: of each unit the sums
  /// of the leaves before; may be empty if there are none.
  void begin_sample_sums(const SampleStep& step, std::vector<SampleSums> begun = {});
  /// Of a step that has failed, with SampleStep::may_break_off: the sums of each unit after the newest reductions that
  /// have ended here, one or two. Resets the engine. Not collective.
  std::vector<std::vector<SampleSums>> begun_sums();
  /// Throws Error(kUsage) if a unit had gradients in some of them only.
  void require_all_sample_sums() const;

  /// Must be called where shards are written to other than by an optimizer: the next forward has to gather those
  /// of all slices again (hybrid_optimizer = "global"). After an update, zero_gradients() says so, or a forward
  /// that autograd does not record. On all ranks alike.
  void note_changed_weights() { weights_changed_ = true; }

  /// Throws Error(kUsage) unless the engine is between steps: no forward or backward is under way, no forward
  /// waits for its backward, and no FullParameters is open. The message begins with `what`, the caller, and
  /// says what to do.
  void require_rest(const char* what) const;
  /// Frees frozen units that stay gathered between the passes of a step; no effect during a pass.
  void reshard_frozen();

  /// Recovers from an exception in forward or backward; gradients of the step are discarded.
  void reset();

  /// Ends the sharding: the parameters are whole and fp32 again, each in separate memory, the engine's hooks
  /// are detached (those of others stay), and it has no units. Collective, between steps.
  void unshard();
  /// Ends the sharding for an engine that takes over: the hooks stay where they are, to be replaced by its own. The
  /// parameters are on the meta device, in fp32. Not collective; between steps.
  HandedOver hand_over();

  /// Gathered parameters and unreduced gradients; nothing is live between steps.
  BufferAccount unsharded_memory() const { return pool_->account(); }
  int64_t live_unsharded_bytes() const { return unsharded_memory().live(); }
  int64_t peak_unsharded_bytes() const { return unsharded_memory().peak; }
  /// Collectives of units since reset_counters().
  Traffic traffic() const;
  /// Restarts the peaks and the traffic.
  void reset_counters();
  BufferPool& buffer_pool() { return *pool_; }
  /// The weights that this rank keeps, padding included, and what it keeps of its slice's beside them.
  int64_t shard_bytes() const;
  int64_t slice_shard_bytes() const;

  /// Whether the unit has the lifetime of the root: the root unit, and units of replicated and of fp32
  /// parameters.
  bool is_root(const Unit& unit) const;
  /// Whether the input of the unit's stage required a gradient when it was last used in training; true before
  /// the first use. Otherwise (embeddings) the end of the unit's backward cannot be seen, and the unit waits
  /// for the end of the whole pass.
  bool input_is_differentiable(const Unit& unit) const;
  /// Whether its output did; true before the first use. Otherwise (frozen embeddings) the unit has no backward.
  bool output_is_differentiable(const Unit& unit) const;

  // ---- events reported by the hook on a unit's stage (make_unit_hook()); see Schedule for the arguments

  void forward_begins(size_t unit, bool records);
  void input_is(size_t unit, bool differentiable) { differentiable_input_[unit] = differentiable; }
  void output_is(size_t unit, bool differentiable) { differentiable_output_[unit] = differentiable; }
  /// Whether recomputation will run the current forward again in backward, where autograd records it.
  bool will_be_recomputed() const { return schedule_.records(); }
  void forward_ends(size_t unit, bool backward_follows);
  int64_t backward_passes() const { return schedule_.backward_passes(); }
  void backward_begins(size_t unit);
  void backward_ends(size_t unit);

  /// Called by fully_shard().
  void set_buffers(std::vector<NamedTensor> buffers) { buffers_ = std::move(buffers); }

  /// Attaches a hook to the module of each unit, in the place of the one in `places` if there is one; detaches
  /// all others of `places`.
  void attach_hooks(HookPlaces places = {});
  /// By unit: the module to which a hook is attached; null for further units of the root stage.
  const std::vector<nn::Hookable*>& modules() const { return modules_; }

 private:
  friend class FullParameters;

  /// Also fills segments_.
  std::vector<std::unique_ptr<Unit>> make_units(const comm::Mesh& mesh, const std::vector<UnitPlan>& plans,
                                                const UnitParts& parts);
  static std::vector<ScheduledUnit> scheduled(const std::vector<UnitPlan>& plans,
                                              const std::vector<std::unique_ptr<Unit>>& units);
  void read(const Command& command) override { commands_.push_back(command); }
  /// Executes the commands that the schedule has issued for an event, in their order.
  void execute_commands();
  void execute(const Command& command);
  void whole_backward_ends();
  void gather(Unit& unit, Pass pass);
  void compare_order(size_t unit) override;
  void report_changed_order(size_t unit) override;
  std::string place_name(size_t unit) const;
  void hand_over_gradient(size_t unit);
  void use_gradient_if_due(size_t unit);
  void require_no_full_parameters(const char* what) const;
  void report_recomputation_of_root();
  size_t index_of(const Unit& unit) const;

  ShardOptions options_;
  comm::Mesh mesh_;
  ProcessGroups groups_;
  std::shared_ptr<BufferPool> pool_;
  std::shared_ptr<OffloadStreams> offload_;  ///< null on the CPU, and if no unit has cpu_offload
  std::vector<Segment> segments_;
  std::vector<NamedTensor> buffers_;
  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<bool> differentiable_input_, differentiable_output_;  ///< by unit
  std::vector<nn::Hookable*> modules_;
  std::vector<std::weak_ptr<nn::CallHook>> hooks_;  ///< of modules_; weak, because they own the engine
  Schedule schedule_;
  /// Commands of an event, and those being executed. The latter are left there where one of them throws, until reset().
  std::vector<Command> commands_, executing_;
  /// On a device: what a gather in forward waits for in place of the caller's stream, which may be busy with
  /// the compute of other units: the begin of the pass, and the releases of memory since. null on the CPU.
  std::unique_ptr<util::Stream> released_;
  std::function<void(size_t)> gradient_use_;
  std::vector<bool> use_is_due_;        ///< on the CPU, by unit: handed over, but still being reduced
  bool weights_changed_ = false;        ///< set by note_changed_weights(), for the next forward
  bool shows_full_parameters_ = false;  ///< set by FullParameters
  bool reported_recomputation_ = false;
};

/// The hook of a unit's module: it notifies the engine when the module's
/// forward and backward begin and end, and keeps the engine alive.
std::shared_ptr<nn::CallHook> make_unit_hook(std::shared_ptr<Engine> engine, size_t unit);

/// Within its scope, backward passes accumulate unsharded gradients without communication (PyTorch's
/// no_sync).
class NoSync {
 public:
  explicit NoSync(Engine& engine) : engine_(engine), before_(engine.requires_gradient_sync()) {
    engine_.set_requires_gradient_sync(false);
  }
  ~NoSync() { engine_.set_requires_gradient_sync(before_); }
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  Engine& engine_;
  bool before_;
};

/// Engine::set_gradient_use() within its scope.
class GradientUse {
 public:
  GradientUse(Engine& engine, std::function<void(size_t unit)> use) : engine_(engine) {
    engine_.set_gradient_use(std::move(use));
  }
  ~GradientUse() { engine_.set_gradient_use(nullptr); }
  GradientUse(const GradientUse&) = delete;
  GradientUse& operator=(const GradientUse&) = delete;

 private:
  Engine& engine_;
};

}  // namespace fsdp::shard
