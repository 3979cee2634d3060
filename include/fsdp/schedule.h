#pragma once

/// \file
/// Learning-rate schedules and loss scaling. lr_at() is a function of the step alone (constant, linear,
/// cosine, polynomial, wsd, inverse_sqrt, tri_stage), so no state has to be saved. GradScaler is torch.amp's,
/// for float16.
///
/// Collective: nothing; all ranks must call GradScaler::update() with the same argument.
///
/// Errors: Error(kUsage) for an unknown name or a number outside its range.
///
/// Lifetime: plain values.
///
/// \code{.cpp}
/// std::vector<double> rates(int64_t steps) {
///   const fsdp::OptimizerOptions optimizer{.lr = 3e-4};
///   const fsdp::ScheduleOptions schedule{.name = "cosine", .warmup_steps = 100, .min_lr_ratio = 0.1};
///   std::vector<double> rates;
///   for (int64_t step = 1; step <= steps; ++step) {
///     rates.push_back(fsdp::lr_at(optimizer, schedule, step, steps));
///   }
///   return rates;
/// }
/// \endcode

#include "state/groups/grad_scaler.h"
#include "state/groups/learning_rate.h"
#include "state/groups/options.h"

namespace fsdp {

using optim::GradScaler;
using optim::GradScalerOptions;
using optim::lr_at;
using optim::schedule_names;
using optim::ScheduleOptions;

}  // namespace fsdp
