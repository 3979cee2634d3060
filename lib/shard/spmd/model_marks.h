#pragma once

// Marks with the mesh axis model. Marks of parameters are a parallel plan (model/nn/parallel_plan.h), by
// which the ranks of the axis compute layers together.

#include <vector>

#include "comm/api/mesh.h"
#include "model/families/parameter_part.h"
#include "model/nn/hookable.h"
#include "model/nn/parallel_plan.h"
#include "shard/spmd/sharding_marks.h"

namespace fsdp::shard {

/// Returns the spec without the axis model, or with that axis alone.
PartitionSpec without_model(const PartitionSpec& spec);
PartitionSpec only_model(const PartitionSpec& spec);

/// Returns the plan that the marks of parameters inside the module state. The outputs of linear layers that
/// are cut on their output features stay on the ranks if a sibling registered after them is cut on its input
/// features, and are gathered otherwise. Throws Error(kUsage) for a mark of another mesh, and for a mark of a
/// layer that ranks cannot share.
nn::ParallelPlan plan_of_marks(torch::nn::Module& module, const comm::Mesh& mesh);

/// Calls nn::parallelize() over the axis model. From then on, outputs of libtorch's layers are marked. Throws
/// like parallelize(), before anything has changed. Forward passes throw Error(kUsage) for inputs whose mark
/// a layer cannot take.
std::vector<nn::ParameterPart> share_layers(torch::nn::Module& module, const nn::ParallelPlan& plan,
                                            const comm::Mesh& mesh);

}  // namespace fsdp::shard
