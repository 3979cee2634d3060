#pragma once

// Dynamic loss scaling for float16 gradients (Micikevicius et al.: Mixed Precision Training, 2018, section
// 3.2), with the arithmetic and the names of PyTorch's torch.amp.GradScaler. The loss is multiplied by the
// scale, so that small gradients do not underflow in float16, and the gradients are divided by it before use.
// A step whose gradients overflow is skipped and lowers the scale; many good steps in a row raise it.
//
// Not collective: every rank must call update() with the same value, such as whether the global gradient norm
// is finite. Not thread-safe.

#include <cstdint>

#include "state/groups/options.h"

namespace fsdp::optim {

/// The part of the scaler that checkpoints keep.
struct GradScalerState {
  double scale = 1;
  int64_t growth_tracker = 0;  ///< good steps since the scale changed or a step was skipped
  int64_t skipped_steps = 0;   ///< number of skipped steps in the whole run, for reports
};

/// The factor of the loss for float16 gradients (fsdp/schedule.h).
class GradScaler {
 public:
  /// Throws Error(kUsage) for invalid numbers (a growth factor of at most 1, ...).
  explicit GradScaler(const GradScalerOptions& options);

  /// The factor for the next backward's loss.
  double scale() const { return state_.scale; }

  /// Adapts the scale. Call it once per step. `found_nonfinite`: whether a gradient is infinite or NaN, in
  /// which case the caller skips the optimizer's step. Returns false if the scale would fall below min_scale,
  /// which means that the training has diverged.
  [[nodiscard]] bool update(bool found_nonfinite);

  /// Counts a step that was skipped only because of the overflow that the last update() was told. For
  /// reports.
  void count_skipped_step() { ++state_.skipped_steps; }

  const GradScalerState& state() const { return state_; }
  /// Restores a state, with a scale of at least min_scale. Throws Error(kCheckpoint) for an invalid state.
  void set_state(const GradScalerState& state);

 private:
  GradScalerOptions options_;
  GradScalerState state_;
};

}  // namespace fsdp::optim
