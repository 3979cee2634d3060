#pragma once

// Engine: shards a model over the ranks of a communicator and schedules its units through forward and
// backward.
//
//   auto engine = fully_shard(*model, options, communicator);
//   loss = f(model->forward(x)); loss.backward();      // gathers, frees and reduces as it goes
//   clip_grad_norm(*engine, 1.0); optimizer over engine->units(); engine->zero_gradients();
//
// A unit is gathered when its stage is entered and freed when the next unit's forward begins, so that the
// last unit of forward is still there when backward, which starts with it, begins. The root unit stays from
// its forward to the end of backward. Backward gathers again in reverse order; when a unit's backward has
// ended, its parameters are freed and its gradients reduce-scattered, one such collective under way beside
// the next unit's backward.
//
// One thread a rank. forward, backward and everything marked collective must be called by all ranks in the
// same order.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "nn/stage.h"
#include "shard/options.h"
#include "shard/unit.h"

namespace fsdp::shard {

/// The part of one parameter that this rank keeps, as a place in its unit's shard.
struct Segment {
  std::string name;            ///< of the parameter
  std::vector<int64_t> shape;  ///< of the whole parameter
  bool requires_grad = true;
  size_t unit = 0;    ///< index into Engine::units()
  int64_t begin = 0;  ///< elements [begin, end) of the flattened parameter; empty when equal
  int64_t end = 0;
  int64_t shard_offset = 0;  ///< of element `begin` in the unit's shard
};

class Engine;

/// Shards `root` in place, attaching to its stages; parameters keep their names. The weights must be equal on
/// all ranks. Throws Error(kUsage) for an unknown options.strategy. The root stage's forward must be what
/// runs the model. The returned engine also lives as long as the stages do.
std::shared_ptr<Engine> fully_shard(nn::Stage& root, const ShardOptions& options,
                                    std::shared_ptr<comm::Communicator> communicator,
                                    std::shared_ptr<comm::Trace> trace = nullptr);

class Engine : public std::enable_shared_from_this<Engine> {
 public:
  /// Use fully_shard().
  Engine(const ShardOptions& options, const ProcessGroups& groups);

  /// All ranks of the run.
  comm::Communicator& communicator() const { return *groups_.world; }
  const ProcessGroups& groups() const { return groups_; }

  /// The root first, then in the order of the modules.
  const std::vector<std::unique_ptr<Unit>>& units() const { return units_; }

  /// This rank's part of every parameter, unit by unit; parameters of which it has none are there with an
  /// empty range.
  const std::vector<Segment>& segments() const { return segments_; }

  /// Forgets the shards' gradients, before the first micro-batch of a step.
  void zero_gradients();

  /// Gathers one unit after another and shows each parameter whole; every rank sees it. Collective, between
  /// steps.
  void for_each_full_parameter(
      const std::function<void(const std::string& name, const at::Tensor& parameter)>& visit);

  /// Brings the engine back to rest after an exception out of forward or backward; gradients of the step are
  /// dropped.
  void reset();

  /// Gathered parameter and unreduced gradient buffers that exist now; 0 between steps.
  int64_t live_unsharded_bytes() const;
  /// The most of them at any time since construction.
  int64_t peak_unsharded_bytes() const { return peak_unsharded_bytes_; }
  /// Master weights of this rank, padding included.
  int64_t shard_bytes() const;

 private:
  class UnitSurround;
  friend std::shared_ptr<Engine> fully_shard(nn::Stage&, const ShardOptions&,
                                             std::shared_ptr<comm::Communicator>,
                                             std::shared_ptr<comm::Trace>);

  void attach(const std::vector<UnitPlan>& plans, const std::shared_ptr<comm::Trace>& trace);
  void before_forward(Unit& unit);
  void after_forward(Unit& unit, bool backward_will_follow);
  void before_backward(Unit& unit);
  void after_backward(Unit& unit);
  void after_whole_backward();

  /// Whether a unit is freed between forward and backward.
  bool reshards_after_forward() const;
  bool is_root(const Unit& unit) const { return &unit == units_.front().get(); }
  void release_kept_unit(const Unit* except);
  void prefetch_forward();
  void prefetch_backward(const Unit& unit);
  void reduce(Unit& unit);
  void finish_reduction();
  void note_memory();

  ShardOptions options_;
  ProcessGroups groups_;
  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<Segment> segments_;

  Unit* kept_ = nullptr;      ///< the unit whose forward ended last and that is not freed yet
  Unit* reducing_ = nullptr;  ///< the unit whose reduce-scatter is under way
  bool in_backward_ = false;
  /// Units in the order in which their forward began (last pass and this one), and ended (this one).
  std::vector<Unit*> last_order_, begun_, ended_;
  int64_t peak_unsharded_bytes_ = 0;
};

}  // namespace fsdp::shard
