#pragma once

// Engine: shards a model over the ranks of a communicator and schedules its units through forward and
// backward.
//
//   auto engine = fully_shard(*model, options, communicator);
//   loss = f(model->forward(x)); loss.backward();      // gathers, frees and reduces as it goes
//   clip_grad_norm(*engine, 1.0); optimizer over engine->units(); engine->zero_gradients();
//
// A unit is gathered when its stage is entered, or ahead of that beside the compute of the unit before it,
// and freed when the next unit's forward begins, so that the last unit of forward is still there when
// backward, which starts with it, begins. The root unit stays from its forward to the end of backward.
// Backward gathers again in reverse order; when a unit's backward has ended, its parameters are freed and its
// gradients reduce-scattered, one such collective under way beside the next unit's backward. With hybrid
// sharding an all-reduce of the shard over the replicas follows in a queue of its own, so that it may go on
// beside the gathers and reduce-scatters of later units, to the end of backward. ShardOptions changes each of
// these rules.
//
// A stage whose activations are recomputed runs its inner units' forward once more within backward: they are
// gathered then and stay until their own backward has ended. The stage's own unit is there already.
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
#include "nn/stage.h"
#include "shard/buffer_pool.h"
#include "shard/execution_order.h"
#include "shard/options.h"
#include "shard/unit.h"

namespace fsdp::shard {

/// The part of one parameter that this rank keeps, as a place in its unit's shard.
struct Segment {
  std::string name;            ///< of the parameter
  std::vector<int64_t> shape;  ///< of the whole parameter
  bool requires_grad = true;
  size_t unit = 0;  ///< index into Engine::units()
  /// Columns [begin, end) of the parameter seen as [rows, numel / rows]; empty when equal. With one row:
  /// elements of the flattened parameter.
  int64_t rows = 1;
  int64_t begin = 0;
  int64_t end = 0;
  int64_t shard_offset = 0;  ///< where they lie in the unit's shard, contiguous

  int64_t numel() const { return rows * (end - begin); }
};

class Engine;

/// Shards `root` in place over the mesh, attaching to its stages; parameters keep their names. The weights
/// must be equal on all ranks. The root stage's forward must be what runs the model. The returned engine also
/// lives as long as the stages do. Throws Error(kUsage) for options that contradict each other or name what
/// the model has not.
///
/// Parameters may lie on the meta device if `materialize` has a source: then each unit's parameters get their
/// values, shard by shard, when the unit is made, and a rank never holds more of the model than its shards.
/// Buffers must be real. What the source throws leaves the model unusable.
std::shared_ptr<Engine> fully_shard(nn::Stage& root, const ShardOptions& options, const comm::Mesh& mesh,
                                    std::shared_ptr<comm::Trace> trace = nullptr,
                                    const Materialize& materialize = {});

/// The same over the ranks of a communicator in a row: a mesh of dcn 1 x data all x model 1.
std::shared_ptr<Engine> fully_shard(nn::Stage& root, const ShardOptions& options,
                                    std::shared_ptr<comm::Communicator> communicator,
                                    std::shared_ptr<comm::Trace> trace = nullptr,
                                    const Materialize& materialize = {});

class Engine : public std::enable_shared_from_this<Engine> {
 public:
  /// Use fully_shard().
  Engine(const ShardOptions& options, const comm::Mesh& mesh);

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
  void set_requires_gradient_sync(bool sync) { sync_ = sync; }
  bool requires_gradient_sync() const { return sync_; }
  /// Whether gradients of a backward pass without sync wait to be reduced.
  bool has_unreduced_gradients() const;

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

  /// Which unit's forward ended last in the last pass; null before the first, and for a root without units.
  const Unit* last_unit_of_forward() const { return last_unit_; }
  /// Units that live as the root does: the root's own, and what was taken out of the others.
  bool is_root(const Unit& unit) const;
  /// Whether the input of the unit's stage required a gradient when it was last used in training; true before
  /// that. Where it does not (embeddings), nothing tells when the unit's backward ends, and it waits for the
  /// end of the whole pass.
  bool input_is_differentiable(const Unit& unit) const;

 private:
  class UnitSurround;
  friend class FullParameters;
  friend std::shared_ptr<Engine> fully_shard(nn::Stage&, const ShardOptions&, const comm::Mesh&,
                                             std::shared_ptr<comm::Trace>, const Materialize&);

  void attach(const std::vector<UnitPlan>& plans, const std::shared_ptr<comm::Trace>& trace,
              const Materialize& materialize);
  void before_forward(size_t index);
  void after_forward(size_t index, bool backward_will_follow);
  void before_backward(size_t index);
  void after_backward(size_t index);
  void after_whole_backward();

  void require_no_full_parameters(const char* what) const;
  void begin_pass();
  void end_pass(bool backward_will_follow);
  /// With explicit prefetch: the first pass must be the same on all ranks, later ones should be as the first.
  void check_order(size_t index);
  void gather_ahead();
  void release_gathered_ahead();
  void release_kept_unit(const Unit* except);
  void prefetch_backward(size_t index);
  void reduce(size_t index);
  void finish_reductions();
  void hand_over_gradient(size_t index);

  ShardOptions options_;
  comm::MeshShape mesh_;
  ProcessGroups groups_, replicated_groups_;
  std::shared_ptr<BufferPool> pool_;
  std::shared_ptr<HostLink> link_;  ///< of what is kept in host memory, if anything is
  std::vector<std::unique_ptr<Unit>> units_;
  size_t root_units_ = 1;  ///< how many of the first units belong to the root stage
  std::vector<Segment> segments_;
  std::vector<bool> differentiable_input_;  ///< of each unit
  std::vector<nn::Stage*> stages_;          ///< that a surround was attached to

  ExecutionOrder order_;
  std::vector<Unit*> ahead_;  ///< gathered ahead of their forward in this pass
  bool order_is_checked_ = false, told_of_changed_order_ = false;
  Unit* kept_ = nullptr;      ///< the unit whose forward ended last and that is not freed yet
  Unit* reducing_ = nullptr;  ///< the unit whose gradients were sent last
  Unit* moving_ = nullptr;    ///< the one before it
  /// What a pass does with a unit, which tells when its gradient is complete.
  struct PassOfUnit {
    int64_t forwards = 0;   ///< that a backward may follow
    int64_t backwards = 0;  ///< that have ended
    bool reduced = false;   ///< and not handed over
  };
  std::vector<PassOfUnit> passes_;  ///< [unit] since the last backward pass
  std::function<void(size_t)> gradient_use_;
  Unit* last_unit_ = nullptr;
  bool in_backward_ = false;
  bool backward_is_due_ = false;        ///< a forward has ended that recorded for a backward
  bool pass_records_ = false;           ///< the root's forward runs with grad mode on
  bool shows_full_parameters_ = false;  ///< set by FullParameters
  bool sync_ = true;
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
