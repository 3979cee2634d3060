#pragma once

// parallelize(): makes a model compute with others, each of which has a part of its layers (the counterpart
// of torch.distributed.tensor.parallel.parallelize_module). It comes before anything else is done to the
// model: before hooks, sharding, use_float8() and optimizers.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/api/communicator.h"
#include "model/families/parameter_part.h"
#include "model/nn/parallel_plan.h"

namespace fsdp::nn {

/// The parts that `rank` of `ranks` will have of a model's parameters, in their order. Throws Error(kUsage)
/// for a plan that does not fit: unknown modules, sizes or heads that do not divide, layouts that the next
/// layer cannot take.
std::vector<ParameterPart> parameter_parts(const torch::nn::Module& model, const ParallelPlan& plan,
                                           int64_t ranks, int64_t rank);

/// Applies the plan: parameters keep their names and become this rank's parts, of shape alone on the meta
/// device, else with the values of the whole. From then on forward and backward are collective over `group`,
/// which must not be used by anything else; a group of one changes nothing. Sequence lengths must divide over
/// the ranks where the plan cuts the sequence. Returns parameter_parts(). Throws like it, before anything has
/// changed.
std::vector<ParameterPart> parallelize(torch::nn::Module& model, const ParallelPlan& plan,
                                       std::shared_ptr<comm::Communicator> group);

/// Whether parallelize() has made it a part of a model.
bool is_parallel(const torch::nn::Module& model);

/// The part of a whole parameter, contiguous.
at::Tensor part_of(const at::Tensor& whole, const ParameterPart& part);

}  // namespace fsdp::nn
