#pragma once

// Marks with the mesh axis model: those of parameters are a parallel plan (model/nn/parallel_plan.h), by which the ranks
// of the axis compute layers together.

#include <torch/nn/module.h>

#include <string>
#include <vector>

#include "comm/api/mesh.h"
#include "model/families/parameter_part.h"
#include "model/nn/parallel_plan.h"
#include "shard/spmd/sharding_marks.h"

namespace fsdp::shard {

/// The spec without the axis model, or that axis alone.
PartitionSpec without_model(const PartitionSpec& spec);
PartitionSpec only_model(const PartitionSpec& spec);

/// What the marks of parameters inside the module say. Linear layers that are cut on their output features leave
/// them on the ranks where a sibling registered after them is cut on its input features, and are gathered where
/// there is none. Throws Error(kUsage) for a mark of another mesh, and for one that is not of a layer that ranks
/// can share.
nn::ParallelPlan plan_of_marks(torch::nn::Module& module, const comm::Mesh& mesh);

/// nn::parallelize() over the axis model; outputs of libtorch's layers are marked from then on. Throws like
/// it, before anything has changed; forward passes throw Error(kUsage) for inputs whose mark a layer cannot take.
std::vector<nn::ParameterPart> share_layers(torch::nn::Module& module, const nn::ParallelPlan& plan,
                                            const comm::Mesh& mesh);

}  // namespace fsdp::shard
