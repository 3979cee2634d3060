#pragma once

#include <utility>

#include "optim/options.h"

namespace fsdp::optim {

/// Both betas. Throws Error(kUsage) unless there are two of at least 0 and below 1.
std::pair<double, double> checked_betas(const OptimizerOptions& options);

}  // namespace fsdp::optim
