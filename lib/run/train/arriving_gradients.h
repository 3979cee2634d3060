#pragma once

// What a step does with gradients as they arrive in host memory: where the model computes, or where
// fsdp.move_grads_to_cpu moves them to. Before backward has ended (shard::GradientUse),
//
//   - it takes their norms, so that little of the global norm is left to compute;
//   - where no update depends on all gradients, it updates their units.
//
// Beside a device the host's cores are idle meanwhile. On the CPU an update takes the same time in backward as after
// it; but the gradient can be freed at once, so that those of all units never exist together (with accumulation, their
// sums do). Gradients that stay on a GPU are left to the end of backward, when one launch updates all units.

#include <cstddef>
#include <utility>

#include "base/util/error.h"
#include "shard/engine/engine.h"
#include "shard/state/grad_norm.h"
#include "state/optim/optimizer.h"

namespace fsdp::train {

/// Of one step.
class ArrivingGradients {
 public:
  struct Options {
    double norm_type = 2;
    double clip_grad_value = 0;  ///< before updates; 0: no clipping
    bool updates = false;        ///< only with an optimizer that updates_alone()
    bool frees = false;          ///< gradients, after the updates
    double lr = 0;
  };
  /// The optimizer is over flat_parameters() of the engine; both must outlive the object.
  ArrivingGradients(const shard::Engine& engine, optim::Optimizer& optimizer, const Options& options)
      : engine_(engine), optimizer_(optimizer), options_(options), norms_(engine.units().size()) {}

  /// The gradient of unit i of the engine is complete.
  void take(size_t i) {
    norms_[i] = shard::local_grad_norm(engine_, i, options_.norm_type);
    if (options_.updates) update(i);
  }

  const shard::KnownNorms& norms() const { return norms_; }

  /// After backward: updates the units that had gradients in earlier micro-batches than the last only, and
  /// ends the optimizer's step. Needs Options::updates.
  void finish_updates() {
    FSDP_CHECK(options_.updates);
    for (size_t i = 0; i < engine_.units().size(); ++i) {
      if (!norms_[i] && engine_.units()[i]->storage().shard_gradient().defined()) update(i);
    }
    if (!begun_) optimizer_.begin_step(options_.lr);
    optimizer_.end_step();
  }

 private:
  void update(size_t i) {
    // Not before there is a gradient: a step that fails in forward has changed nothing.
    if (!std::exchange(begun_, true)) optimizer_.begin_step(options_.lr);
    if (options_.clip_grad_value > 0) shard::clip_grad_value(engine_, i, options_.clip_grad_value);
    shard::UnitStorage& storage = engine_.units()[i]->storage();
    optimizer_.update_parameter(i, storage.shard_gradient());
    if (options_.frees) storage.clear_shard_gradient();
  }

  const shard::Engine& engine_;
  optim::Optimizer& optimizer_;
  Options options_;
  shard::KnownNorms norms_;  ///< of the units that were taken
  bool begun_ = false;       ///< the optimizer's step
};

}  // namespace fsdp::train
