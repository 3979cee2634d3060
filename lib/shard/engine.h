#pragma once

// Engine: the units of a model that is sharded over the ranks of a communicator. In which order they are
// gathered, freed and reduced is decided by a Schedule (shard/schedule.h); the engine executes its commands.
//
//   auto engine = fully_shard(*model, options, communicator);   // shard/fully_shard.h
//   loss = f(model->forward(x)); loss.backward();      // gathers, frees and reduces as it goes
//   clip_grad_norm(*engine, 1.0); optimizer over engine->units(); engine->zero_gradients();
//
// One thread a rank. forward, backward and everything marked collective must be called by all ranks in the
// same order.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "nn/hooked.h"
#include "shard/buffer_pool.h"
#include "shard/options.h"
#include "shard/schedule.h"
#include "shard/unit.h"
#include "shard/wrap_policy.h"

namespace fsdp::shard {

/// The part of one parameter that this rank keeps, as a place in its unit's shard.
struct Segment {
  std::string name;            ///< of the parameter
  std::vector<int64_t> shape;  ///< of the whole parameter
  bool requires_grad = true;
  size_t unit = 0;            ///< index into Engine::units()
  util::ColumnRange range{};  ///< of the parameter; may be empty
  int64_t shard_offset = 0;   ///< where its elements lie in the unit's shard, contiguous

  int64_t numel() const { return range.numel(); }
};

class Engine final : public std::enable_shared_from_this<Engine>, private CommandReader {
 public:
  /// Use fully_shard(). Collective if the source of `materialize` is; attaches nothing to the modules.
  Engine(const ShardOptions& options, const comm::Mesh& mesh, const std::vector<UnitPlan>& plans,
         const std::shared_ptr<comm::Trace>& trace = nullptr, const Materialize& materialize = {});

  const ShardOptions& options() const { return options_; }
  /// All ranks of the run.
  comm::Communicator& communicator() const { return *groups_.world; }
  /// Of the units that the strategy cuts; see Unit::groups() for the others.
  const ProcessGroups& groups() const { return groups_; }
  const comm::MeshShape& mesh() const { return mesh_; }

  /// The root first, then what was taken out of the others' units (replicated or fp32 parameters), then in
  /// the order of the modules.
  const std::vector<std::unique_ptr<Unit>>& units() const { return units_; }

  /// This rank's part of every parameter, unit by unit; parameters of which it has none are there with an
  /// empty range.
  const std::vector<Segment>& segments() const { return segments_; }

  /// Off: following backward passes leave gradients unsharded and unreduced; the first one after it is on
  /// again reduces the sum. Costs the memory of the whole gradient and saves the reductions. See NoSync.
  void set_requires_gradient_sync(bool sync) { schedule_.set_requires_gradient_sync(sync); }
  bool requires_gradient_sync() const { return schedule_.requires_gradient_sync(); }
  /// Whether gradients of a backward pass without sync wait to be reduced.
  bool has_unreduced_gradients() const { return schedule_.has_unreduced_gradients(); }

  /// With move_grads_to_cpu: `use(i)` is called for each unit i when its gradient of the coming backward pass
  /// is complete and in host memory, one after another in the order of arrival, on a thread of the engine's
  /// own beside the rest of the pass. It may write the unit's shard: the pass has no use for that any more.
  /// When backward() returns all have been called; of what one throws, backward() throws the message with the
  /// unit's name, and later ones are not called. Units without a gradient in the pass are left out. null: no
  /// more; waits for one that is running. See GradientUse.
  void set_gradient_use(std::function<void(size_t unit)> use);

  /// Forgets all gradients, before the first micro-batch of a step.
  void zero_gradients();

  /// Throws Error(kUsage) that says what to do, unless the engine is between steps: no forward or backward is
  /// under way, no forward waits for its backward, and no FullParameters is open. The message begins with
  /// `what`, which is what needs it.
  void require_rest(const char* what) const;

  /// Brings the engine back to rest after an exception out of forward or backward; gradients of the step are
  /// dropped.
  void reset();

  /// Ends the sharding: the parameters are whole and fp32 again, each in memory of its own, nothing is
  /// attached to the stages of the units any more, and the engine has no units. Collective, between steps.
  void unshard();

  /// Gathered parameters and unreduced gradients; nothing is live between steps.
  BufferAccount unsharded_memory() const { return pool_->account(); }
  int64_t live_unsharded_bytes() const { return unsharded_memory().live(); }
  int64_t peak_unsharded_bytes() const { return unsharded_memory().peak; }
  /// Collectives of units since the counters were reset.
  Traffic traffic() const;
  /// Peaks and traffic count from here.
  void reset_counters();
  BufferPool& buffer_pool() { return *pool_; }
  /// Master weights of this rank, padding included.
  int64_t shard_bytes() const;

  /// Units that live as the root does: the root's own, and what was taken out of the others.
  bool is_root(const Unit& unit) const;
  /// Whether the input of the unit's stage required a gradient when it was last used in training; true before
  /// that. Where it does not (embeddings), nothing shows when the unit's backward ends, and it waits for the
  /// end of the whole pass.
  bool input_is_differentiable(const Unit& unit) const;

  // ---- what the hook on a unit's stage reports (shard/unit_hook.h); see Schedule for the arguments

  void forward_begins(size_t unit, bool records);
  void input_is(size_t unit, bool differentiable) { differentiable_input_[unit] = differentiable; }
  /// Whether recomputation will run the forward under way again in backward, where autograd records it.
  bool will_be_recomputed() const { return schedule_.records(); }
  void forward_ends(size_t unit, bool backward_follows) { schedule_.forward_ends(unit, backward_follows); }
  int64_t backward_passes() const { return schedule_.backward_passes(); }
  void backward_begins(size_t unit);
  void backward_ends(size_t unit) { schedule_.backward_ends(unit); }

  /// The modules of the units, to which hooks are attached; null: a further unit of the root.
  const std::vector<nn::Hookable*>& modules() const { return modules_; }

 private:
  friend class FullParameters;

  /// Adds to segments_.
  std::vector<std::unique_ptr<Unit>> make_units(const std::vector<UnitPlan>& plans, const UnitParts& parts);
  static std::vector<ScheduledUnit> scheduled(const std::vector<UnitPlan>& plans,
                                              const std::vector<std::unique_ptr<Unit>>& units);
  void read(const Command& command) override;
  /// With explicit prefetch: the first pass must be the same on all ranks, later ones should be as the first.
  void compare_order(size_t unit) override;
  void report_changed_order(size_t unit) override;
  std::string place_name(size_t unit) const;
  void hand_over_gradient(size_t unit);
  void require_no_full_parameters(const char* what) const;
  size_t index_of(const Unit& unit) const;

  ShardOptions options_;
  comm::MeshShape mesh_;
  ProcessGroups groups_, replicated_groups_;
  std::shared_ptr<BufferPool> pool_;
  std::shared_ptr<OffloadStreams> offload_;  ///< of what is kept in host memory, if anything is
  std::vector<Segment> segments_;
  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<bool> differentiable_input_;  ///< of each unit
  std::vector<nn::Hookable*> modules_;
  Schedule schedule_;
  std::function<void(size_t)> gradient_use_;
  bool shows_full_parameters_ = false;  ///< set by FullParameters
};

/// While it lives, backward passes accumulate unsharded gradients without communication (PyTorch's no_sync).
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

/// Engine::set_gradient_use() while it lives.
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
