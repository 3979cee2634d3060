#pragma once

// What a step does with gradients as they arrive in host memory (fsdp.move_grads_to_cpu), beside the backward
// of the units before them, on the engine's thread for that (shard::GradientUse):
//
//   - it takes their norms, so that little is left to do for the global norm when backward has ended;
//   - where nothing about the step depends on all gradients, it updates their units.
//
// While a device computes, the host's cores have nothing else to do. Gradients that stay where the
// computation is are left to the end of backward: on the CPU an update beside it would take the cores, and on
// a GPU the same kernels would run in the same stream, only earlier, with weights that a divergence may find
// changed.

#include <cstddef>

#include "optim/optimizer.h"
#include "shard/engine.h"
#include "shard/grad_norm.h"

namespace fsdp::train {

/// Of one step.
class ArrivingGradients {
 public:
  struct Options {
    double norm_type = 2;
    bool updates = false;  ///< only with an optimizer that updates_alone()
    double lr = 0;
  };
  /// The optimizer is over flat_parameters() of the engine; both must outlive the object.
  ArrivingGradients(const shard::Engine& engine, optim::Optimizer& optimizer, const Options& options)
      : engine_(engine), optimizer_(optimizer), options_(options), norms_(engine.units().size()) {}

  /// The gradient of unit i of the engine is complete.
  void take(size_t i);

  const shard::KnownNorms& norms() const { return norms_; }

  /// After backward: updates the units whose gradients came in micro-batches before the last alone, and ends
  /// the optimizer's step. Needs Options::updates.
  void finish_updates();

 private:
  void update(size_t i);

  const shard::Engine& engine_;
  optim::Optimizer& optimizer_;
  Options options_;
  shard::KnownNorms norms_;  ///< of the units that were taken
  bool begun_ = false;       ///< the optimizer's step
};

}  // namespace fsdp::train
