#pragma once

// ArrivingGradients: uses gradients when they are complete, before backward has ended (shard::GradientUse).
//
//   - The norm of each gradient is computed, so that little of the global norm is left to compute: on the
//     host if gradients are there, or else by a kernel beside the compute of other units.
//   - If gradients are in host memory and no update depends on all of them, the unit of each is updated.
//
// While a device computes, the host's cores are idle. On the CPU an update takes the same time in backward as
// after it, but the gradient can be freed at once, so that the gradients of all units never exist together
// (with accumulation, their sums do). Gradients that stay on a GPU are left to the end of backward for the
// update, when one launch updates all units.

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <cstddef>
#include <utility>
#include <vector>

#include "base/util/error.h"
#include "shard/engine/engine.h"
#include "shard/state/grad_norm.h"
#include "state/optim/optimizer.h"

namespace fsdp::train {

/// The gradients of one step.
class ArrivingGradients {
 public:
  struct ArrivalOptions {
    double norm_type = 2;
    double clip_grad_value = 0;  ///< limit for each element, before updates; 0: no clipping
    bool updates = false;        ///< whether units are updated; requires an optimizer that updates_alone()
    bool frees = false;          ///< whether gradients are freed after the updates
    double lr = 0;
    bool on_device = false;  ///< whether norms stay there: TrainStep::reads_late()
  };
  /// Requires: the optimizer updates flat_parameters() of the engine; both outlive the object.
  ArrivingGradients(const shard::Engine& engine, optim::Optimizer& optimizer, const ArrivalOptions& options)
      : engine_(engine), optimizer_(optimizer), options_(options), norms_(engine.units().size()) {
    if (!sums_on_device()) return;
    int64_t trained = 0;
    for (const auto& unit : engine.units()) {
      places_.push_back(trained);
      trained += unit->storage().has_trainable_parameters() ? 1 : 0;
    }
    // Allocated here: what is computed in other streams is read in the caller's.
    sums_ = at::empty({trained}, at::TensorOptions(at::kDouble).device(engine.communicator().device()));
    squared_.resize(norms_.size());
  }

  /// Whether take() is to be called for the gradients of the last micro-batch.
  bool takes_gradients() const {
    return options_.updates || engine_.options().move_grads_to_cpu || sums_on_device();
  }

  /// Uses the gradient of unit i of the engine, which is complete.
  void take(size_t i) {
    if (sums_on_device()) {
      squared_[i] = shard::sum_unit_squares(engine_, i, place_of(i));
      return;
    }
    norms_[i] = shard::local_grad_norm(engine_, i, options_.norm_type);
    if (options_.updates) update(i);
  }

  const shard::KnownNorms& norms() const { return norms_; }
  /// The sums of squares on the device that take() has computed.
  shard::KnownSquares squares() const {
    std::vector<at::Tensor> known;
    for (size_t i = 0; i < squared_.size(); ++i) {
      if (squared_[i]) known.push_back(place_of(i));
    }
    if (known.empty()) return {};
    const bool has_all = static_cast<int64_t>(known.size()) == sums_.numel();
    return {.sums = has_all ? sums_ : at::cat(known), .units = squared_};
  }

  /// Updates the units that had gradients in earlier micro-batches than the last only, and ends the
  /// optimizer's step. Requires: ArrivalOptions::updates, and backward has ended.
  void finish_updates() {
    FSDP_CHECK(options_.updates);
    for (size_t i = 0; i < engine_.units().size(); ++i) {
      if (!norms_[i] && engine_.units()[i]->storage().shard_gradient().defined()) update(i);
    }
    if (!begun_) optimizer_.begin_step(options_.lr);
    optimizer_.end_step();
  }

 private:
  /// Whether take() computes squares().
  bool sums_on_device() const { return options_.on_device && options_.norm_type == 2; }
  at::Tensor place_of(size_t i) const { return sums_.narrow(0, places_[i], 1); }

  void update(size_t i) {
    // The optimizer's step begins with the first gradient, so that a step that fails in forward changes
    // nothing.
    if (!std::exchange(begun_, true)) optimizer_.begin_step(options_.lr);
    if (options_.clip_grad_value > 0) shard::clip_grad_value(engine_, i, options_.clip_grad_value);
    shard::UnitStorage& storage = engine_.units()[i]->storage();
    optimizer_.update_parameter(i, storage.shard_gradient());
    if (options_.frees) storage.clear_shard_gradient();
  }

  const shard::Engine& engine_;
  optim::Optimizer& optimizer_;
  ArrivalOptions options_;
  shard::KnownNorms norms_;      ///< norms of the units whose gradients were taken
  at::Tensor sums_;              ///< [trained units] double; undefined unless sums_on_device()
  std::vector<int64_t> places_;  ///< of each unit in sums_
  std::vector<bool> squared_;    ///< units whose sums are there
  bool begun_ = false;           ///< whether the optimizer's step has begun
};

}  // namespace fsdp::train
