#pragma once

// The sizes of units (shard/unit_sizes.h) and the formula of a step (shard/step_formula.h) of engines and
// modules.

#include <torch/nn/module.h>

#include <vector>

#include "shard/engine.h"
#include "shard/step_formula.h"
#include "shard/unit_sizes.h"

namespace fsdp::shard {

/// In the order of Engine::units().
std::vector<UnitSizes> unit_sizes(const Engine& engine);

/// What unit_sizes() of the engine would be that fully_shard() makes of the model, before its first pass.
/// The model may lie on the meta device. Throws Error(kUsage) as fully_shard() does.
std::vector<UnitSizes> unit_sizes(torch::nn::Module& model, const ShardOptions& options,
                                  const comm::MeshShape& mesh);

/// Not collective.
StepFormula step_formula(const Engine& engine, const StepFormulaOptions& step = {});

}  // namespace fsdp::shard
