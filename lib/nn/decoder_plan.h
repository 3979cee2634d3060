#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "nn/options.h"
#include "nn/parallel_plan.h"
#include "nn/parameter_part.h"

namespace fsdp::nn {

/// The plan of the built-in architectures.
ParallelPlan decoder_plan(const ModelOptions& options, const ParallelOptions& parallel);

/// parallelize() by that plan; a group of one changes nothing and has no parts.
std::vector<ParameterPart> parallelize_decoder(torch::nn::Module& decoder, const ModelOptions& options,
                                               const ParallelOptions& parallel,
                                               std::shared_ptr<comm::Communicator> group);

}  // namespace fsdp::nn
