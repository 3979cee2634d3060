#pragma once

// The rule that derives the outcome of a step from the sums over ranks, the same on all devices.

#include <cmath>
#include <cstdint>

#ifdef __CUDACC__
#define FSDP_ANY_DEVICE __host__ __device__
#else
#define FSDP_ANY_DEVICE
#endif

namespace fsdp::kernels {

/// Outcome of a step. All numbers have one type, so that a tensor can hold them.
struct StepOutcome {
  double loss = 0;            ///< mean loss over the ranks
  double grad_norm = 0;       ///< norm of the whole gradient, before clipping
  double gradient_scale = 1;  ///< factor of clipping for the gradients; NaN: no update is allowed
  /// The first step whose loss or norm was not finite, and both of these; 0: none. No later step may update.
  double diverged_step = 0, diverged_loss = 0, diverged_grad_norm = 0;
  double diverged_local_loss = 0;  ///< this rank's loss in that step
  double loss_sum = 0;             ///< sum of `loss` over all steps so far
};
inline constexpr int64_t kOutcomeNumbers = sizeof(StepOutcome) / sizeof(double);

struct OutcomeRule {
  double ranks = 1;
  double norm_type = 2;      ///< p of the norm, finite
  double max_grad_norm = 0;  ///< 0: no clipping
  double step = 1;

  /// Decides the outcome. The scale is that of shard::clipping().
  FSDP_ANY_DEVICE void decide(double loss_sum, double norm_sum, double local_loss,
                              StepOutcome& outcome) const {
    outcome.loss = loss_sum / ranks;
    outcome.loss_sum += outcome.loss;
    outcome.grad_norm = norm_type == 2 ? sqrt(norm_sum) : pow(norm_sum, 1 / norm_type);
    const bool clips = max_grad_norm > 0 && outcome.grad_norm > max_grad_norm;
    outcome.gradient_scale = clips ? max_grad_norm / (outcome.grad_norm + 1e-6) : 1;
    // The difference of a number that is not finite to itself is NaN.
    const double zero = (outcome.loss - outcome.loss) + (outcome.grad_norm - outcome.grad_norm);
    if (zero != 0 && outcome.diverged_step == 0) {
      outcome.diverged_step = step;
      outcome.diverged_loss = outcome.loss;
      outcome.diverged_grad_norm = outcome.grad_norm;
      outcome.diverged_local_loss = local_loss;
    }
    if (outcome.diverged_step != 0) outcome.gradient_scale = NAN;
  }
};

}  // namespace fsdp::kernels
