#pragma once

#include "nn/options.h"
#include "nn/parallel_plan.h"

namespace fsdp::nn {

/// The plan of the built-in architectures.
ParallelPlan decoder_plan(const ModelOptions& options, const ParallelOptions& parallel);

}  // namespace fsdp::nn
