#include "state/groups/grad_scaler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/util/error.h"

namespace fsdp::optim {
namespace {

/// The loss is float32: a larger scale would make every gradient infinite.
constexpr double kMaxScale = std::numeric_limits<float>::max();

void check(const GradScalerOptions& options) {
  require(options.min_scale > 0 && options.min_scale <= kMaxScale,
          "loss_scaler.min_scale = ", options.min_scale,
          " must be a float32 number above 0; correct the config");
  require(options.init_scale >= options.min_scale && options.init_scale <= kMaxScale,
          "loss_scaler.init_scale = ", options.init_scale,
          " must be a float32 number of at least loss_scaler.min_scale = ", options.min_scale,
          "; correct the config");
  require(options.growth_factor > 1 && std::isfinite(options.growth_factor),
          "loss_scaler.growth_factor = ", options.growth_factor,
          " must be a number above 1; correct the config");
  require(options.backoff_factor > 0 && options.backoff_factor < 1,
          "loss_scaler.backoff_factor = ", options.backoff_factor,
          " must be a number between 0 and 1; correct the config");
  require(options.growth_interval >= 1, "loss_scaler.growth_interval = ", options.growth_interval,
          " must be at least 1 step; correct the config");
}

}  // namespace

GradScaler::GradScaler(const GradScalerOptions& options)
    : options_(options), state_{.scale = options.init_scale} {
  check(options_);
}

bool GradScaler::update(bool found_nonfinite) {
  if (found_nonfinite) {
    state_.growth_tracker = 0;
    if (state_.scale <= options_.min_scale) return false;
    state_.scale = std::max(state_.scale * options_.backoff_factor, options_.min_scale);
    return true;
  }
  // Not ==: a restored tracker may exceed an interval that has been shortened.
  if (++state_.growth_tracker >= options_.growth_interval) {
    state_.growth_tracker = 0;
    double grown = state_.scale * options_.growth_factor;
    if (grown <= kMaxScale) state_.scale = grown;
  }
  return true;
}

void GradScaler::set_state(const GradScalerState& state) {
  if (!(state.scale > 0 && state.scale <= kMaxScale) || state.growth_tracker < 0) {
    fail(ErrorKind::kCheckpoint,
         "the gradient scale must be a positive float32 number and its step count at least 0, "
         "but they are ",
         state.scale, " and ", state.growth_tracker,
         "; the checkpoint is damaged, so resume from another one");
  }
  state_ = state;
  state_.scale = std::max(state_.scale, options_.min_scale);
}

}  // namespace fsdp::optim
