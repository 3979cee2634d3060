#pragma once

// What a step does with gradients as they arrive in host memory (fsdp.move_grads_to_cpu), beside the backward
// of the units before them, on the engine's thread for that (shard::GradientUse):
//
//   - it takes their norms, so that little of the global norm is left to compute when backward has ended;
//   - where no update depends on all gradients, it updates their units.
//
// While a device computes, the host's cores are idle. Gradients that stay where the model computes are left
// to the end of backward: on the CPU, an update beside backward would take its cores, and on a GPU, the same
// kernels would run in the same stream, only earlier, and a divergence might find weights already changed.

#include <cstddef>
#include <utility>

#include "optim/optimizer.h"
#include "shard/engine.h"
#include "shard/grad_norm.h"
#include "util/error.h"

namespace fsdp::train {

/// Of one step.
class ArrivingGradients {
 public:
  struct Options {
    double norm_type = 2;
    double clip_grad_value = 0;  ///< before updates; 0: no clipping
    bool updates = false;        ///< only with an optimizer that updates_alone()
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
    optimizer_.update_parameter(i, engine_.units()[i]->storage().shard_gradient());
  }

  const shard::Engine& engine_;
  optim::Optimizer& optimizer_;
  Options options_;
  shard::KnownNorms norms_;  ///< of the units that were taken
  bool begun_ = false;       ///< the optimizer's step
};

}  // namespace fsdp::train
