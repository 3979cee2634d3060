#pragma once

// Engine: the units of a model that is sharded over the ranks of a communicator. A Schedule
// (shard/units/schedule.h) decides the order in which units are gathered, freed and reduced, and the engine
// executes its commands.
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
#include "model/nn/hookable.h"
#include "shard/engine/buffer_pool.h"
#include "shard/engine/tensor_slice.h"
#include "shard/engine/unit.h"
#include "shard/engine/wrap_policy.h"
#include "shard/units/options.h"
#include "shard/units/schedule.h"

namespace fsdp::shard {

/// The part of one parameter in this rank's shard of its unit.
struct Segment {
  std::string name;            ///< name of the parameter
  std::vector<int64_t> shape;  ///< shape of the whole parameter
  bool requires_grad = true;
  size_t unit = 0;           ///< index into Engine::units()
  size_t parameter = 0;      ///< index into the parameters of the unit's layout
  util::Rectangle range{};   ///< range of the parameter; may be empty
  int64_t shard_offset = 0;  ///< place of its elements, which are contiguous in the unit's shard

  int64_t numel() const { return range.numel(); }
};

/// Number of elements of segments.
inline int64_t numel_of(std::span<const Segment> segments) {
  int64_t numel = 0;
  for (const Segment& segment : segments) numel += segment.numel();
  return numel;
}

/// The hooks of units, keyed by the module that each is attached to.
using HookPlaces = std::map<nn::Hookable*, std::shared_ptr<nn::CallHook>>;

/// Hooks and units of an engine that another engine takes over.
struct HandedOver {
  HookPlaces places;
  std::vector<std::unique_ptr<Unit>> units;  ///< used for their weights only: Unit::gather_weights()
};

/// The units of a sharded module, and the hooks that gather, free and reduce them (fsdp/fully_shard.h).
class Engine final : public std::enable_shared_from_this<Engine>, private CommandReader {
 public:
  /// Called by fully_shard(), which attaches the hooks. Collective if the source of `materialize` is
  /// collective, and with reduce_scatter_group.
  Engine(const ShardOptions& options, const comm::Mesh& mesh, const std::vector<UnitPlan>& plans,
         const std::shared_ptr<comm::Trace>& trace = nullptr, const Materialize& materialize = {});

  const ShardOptions& options() const { return options_; }
  /// All ranks of the run.
  comm::Communicator& communicator() const { return *groups_.world; }
  /// The groups of the units that the model's strategy cuts; other units have groups of their own
  /// (Unit::groups()).
  const ProcessGroups& groups() const { return groups_; }
  const comm::MeshShape& mesh() const { return mesh_.shape(); }
  /// The ranks that have parts of the same layers (ShardOptions::parts). Used between steps only.
  const std::shared_ptr<comm::Communicator>& model_group() const { return mesh_.model(); }

  /// The root first, then units of replicated and of fp32 parameters, then the others in the order of the
  /// modules.
  const std::vector<std::unique_ptr<Unit>>& units() const { return units_; }

  /// This rank's parts of every parameter, unit by unit. A parameter has at least one part, which may be
  /// empty. Its parts follow each other here and, without a gap, in the shard. Ranks may have different
  /// numbers of parts.
  const std::vector<Segment>& segments() const { return segments_; }
  /// Returns segments() grouped by parameter, in the same order on every rank.
  std::vector<std::span<const Segment>> segments_by_parameter() const;

  /// The model's buffers, except those that its modules compute (model/nn/buffers.h). They are contiguous and
  /// whole on every rank, which may change its own in forward.
  const std::vector<NamedTensor>& buffers() const { return buffers_; }

  /// Sets whether backward passes reduce gradients. While it is off, they leave gradients unsharded and
  /// unreduced, and the first pass after it is on again reduces the sum. This saves reductions and costs the
  /// memory of the whole gradient. See NoSync.
  void set_requires_gradient_sync(bool sync) { schedule_.set_requires_gradient_sync(sync); }
  bool requires_gradient_sync() const { return schedule_.requires_gradient_sync(); }
  /// Sets whether backward passes reduce gradients over replicas too. While it is off, they reduce within
  /// slices only, and the first pass after it is on again adds the sums of all replicas (hybrid_shard,
  /// no_shard, replicated parameters). This saves the all-reduces of the other passes and costs no memory. No
  /// effect on units whose gradients move to host memory, with hybrid_optimizer = "global" and with
  /// sums_by_sample. (PyTorch's FSDPModule.set_requires_all_reduce().)
  void set_requires_all_reduce(bool all_reduce) { schedule_.set_requires_all_reduce(all_reduce); }
  /// Whether a backward pass has left gradients unreduced because one of the two was off.
  bool has_unreduced_gradients() const { return schedule_.has_unreduced_gradients(); }

  /// Calls `use(i)` in the next backward passes for each unit i with a gradient, when the gradient is
  /// complete. `use` may write the unit's shard, which the pass no longer needs, and free the gradient. Where
  /// the model computes on the host, the calls run within backward, on its thread. On a device, the calls for
  /// gradients that move to host memory (move_grads_to_cpu) run in order of arrival on a thread of the
  /// engine, beside the rest of the pass. For those that stay on the device they run within backward: the
  /// current stream is that of the reduction, so what a call launches reads the complete gradient beside the
  /// compute of other units; such a call must not free the gradient. All calls have returned when backward()
  /// returns. An exception skips the remaining calls, and backward() throws its message with the unit's name.
  /// Null waits for a running call and ends the use. See GradientUse.
  void set_gradient_use(std::function<void(size_t unit)> use);

  /// Discards all gradients, before the first micro-batch of a step.
  void zero_gradients();

  /// Must be called on all ranks where anything but an optimizer has written to shards, because the next
  /// forward must gather the shards of all slices again (hybrid_optimizer = "global") and cast shards again
  /// (keep_low_precision_shards). After an update, zero_gradients() or a forward without autograd has the
  /// same effect on slices.
  void note_changed_weights();

  /// Throws Error(kUsage) unless the engine is between steps: no forward or backward is under way, no forward
  /// waits for its backward, and no FullParameters is open. The message begins with `what`, the name of the
  /// caller, and has a remedy.
  void require_rest(const char* what) const;
  /// Frees frozen units that stay gathered between the passes of a step; no effect during a pass.
  void reshard_frozen();

  /// Recovers from an exception in forward or backward; gradients of the step are discarded.
  void reset();

  /// Ends the sharding: the parameters are whole and fp32 again, each in separate memory, the engine's hooks
  /// are detached (other hooks stay), and it has no units. Requires: an engine between steps. Collective.
  void unshard();
  /// Ends the sharding for an engine that takes over. The hooks stay in place, and the other engine replaces
  /// them by its own. The parameters are on the meta device, in fp32. Requires: an engine between steps. Not
  /// collective.
  HandedOver hand_over();

  /// Memory of gathered parameters and unreduced gradients; nothing is live between steps.
  BufferAccount unsharded_memory() const { return pool_->account(); }
  int64_t live_unsharded_bytes() const { return unsharded_memory().live(); }
  int64_t peak_unsharded_bytes() const { return unsharded_memory().peak; }
  /// Collectives of units since reset_counters().
  Traffic traffic() const;
  /// Restarts the peaks and the traffic.
  void reset_counters();
  BufferPool& buffer_pool() { return *pool_; }
  /// Bytes of the weights that this rank keeps, padding included, and of those that it keeps in addition and
  /// gathers from (UnitStorage::source()).
  int64_t shard_bytes() const;
  int64_t source_bytes() const;

  /// Whether the unit has the lifetime of the root: the root unit, and units of replicated and of fp32
  /// parameters.
  bool is_root(const Unit& unit) const;
  /// Whether the input of the unit's stage required a gradient when it was last used in training; true before
  /// the first use. Otherwise (embeddings) the end of the unit's backward cannot be seen, and the unit waits
  /// for the end of the whole pass.
  bool input_is_differentiable(const Unit& unit) const;
  /// Whether the output required one; true before the first use. Otherwise (frozen embeddings) the unit has
  /// no backward.
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

  /// Attaches a hook to the module of each unit, in the place of its hook in `places` if there is one.
  /// Detaches all other hooks of `places`.
  void attach_hooks(HookPlaces places = {});
  /// The module of each unit to which its hook is attached; null for further units of the root stage.
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
  std::vector<bool> differentiable_input_, differentiable_output_;  ///< indexed by unit
  std::vector<nn::Hookable*> modules_;
  std::vector<std::weak_ptr<nn::CallHook>> hooks_;  ///< hooks on modules_; weak, because they own the engine
  Schedule schedule_;
  /// Commands of an event, and commands that are being executed. If one throws, they stay in executing_ until
  /// reset().
  std::vector<Command> commands_, executing_;
  /// Stream for which a gather in forward waits on a device, in place of the caller's stream, which may be
  /// busy with the compute of other units. It has waited for the begin of the pass and the releases of memory
  /// since. Null on the CPU.
  std::unique_ptr<util::Stream> released_;
  std::function<void(size_t)> gradient_use_;
  std::vector<bool> use_is_due_;        ///< units handed over, but still being reduced; CPU only
  bool weights_changed_ = false;        ///< set by note_changed_weights(), for the next forward
  bool shows_full_parameters_ = false;  ///< set by FullParameters
  bool reported_recomputation_ = false;
};

/// Makes the hook of a unit's module, which notifies the engine when the module's forward and backward begin
/// and end, and keeps the engine alive.
std::shared_ptr<nn::CallHook> make_unit_hook(std::shared_ptr<Engine> engine, size_t unit);

/// A scope in which backward passes accumulate unsharded gradients without communication (PyTorch's no_sync).
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
