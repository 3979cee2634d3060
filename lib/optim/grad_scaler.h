#pragma once

// Dynamic loss scaling for float16 gradients (Micikevicius et al.: Mixed Precision Training, 2018, section
// 3.2), with the arithmetic and the names of PyTorch's torch.amp.GradScaler. The loss is multiplied by the
// scale, so that small gradients do not vanish in float16, and the gradients are divided by it before they
// are used. A step whose gradients overflowed is skipped and lowers the scale; many good steps in a row raise
// it.
//
// Plain arithmetic on two numbers, not collective: every rank must feed update() the same answer, one that
// all ranks agree on, such as whether the global gradient norm is finite. Not thread-safe.

#include <cstdint>

#include "optim/options.h"

namespace fsdp::optim {

/// Whether gradients are to be scaled, by options.enabled. Throws Error(kUsage) unless that is "auto", "true"
/// or "false".
bool uses_grad_scaler(const GradScalerOptions& options, bool float16_in_use);

/// What a checkpoint keeps; numbers as they are, since a scale is a double and need not be a power of two.
struct GradScalerState {
  double scale = 1;
  int64_t growth_tracker = 0;  ///< good steps since the scale changed or a step was skipped
  int64_t skipped_steps = 0;   ///< of the whole run, for reports
};

class GradScaler {
 public:
  /// Throws Error(kUsage) for numbers with which no scaling works (a growth of less than 1, ...).
  explicit GradScaler(const GradScalerOptions& options);

  /// What the loss of the coming backward is multiplied by.
  double scale() const { return state_.scale; }

  /// To be called once a step, after it is known whether a gradient of it is infinite or not a number. Then
  /// the caller skips the optimizer's step. False: the scale cannot be lowered any more, it is at min_scale
  /// already, so what is wrong is not the scale and the training has diverged.
  [[nodiscard]] bool update(bool found_nonfinite);

  /// For the record: the step of the last update() was skipped for nothing but its overflow.
  void count_skipped_step() { ++state_.skipped_steps; }

  const GradScalerState& state() const { return state_; }
  /// Goes on as the scaler that the state is of, if its options are the same; a scale below min_scale is
  /// raised to it. Throws Error(kCheckpoint) for a state that no scaler has.
  void set_state(const GradScalerState& state);

 private:
  GradScalerOptions options_;
  GradScalerState state_;
};

}  // namespace fsdp::optim
