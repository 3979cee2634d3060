#pragma once

// Advice for the config of a run that does not fit.

#include <vector>

#include "setup/config/config.h"
#include "tools/plan/plan.h"

namespace fsdp::plan {

/// Changes of the plan's config, the cheapest first, until the run fits or nothing is left to change. `given`
/// is the config before batches were resolved.
std::vector<Advice> advise(const Plan& plan, const config::Config& given);

}  // namespace fsdp::plan
