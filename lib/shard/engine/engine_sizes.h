#pragma once

// The sizes of the units (shard/units/unit_sizes.h) and the formula of a step (shard/units/step_formula.h) of
// engines and modules. Nothing here is collective.

#include <vector>

#include "shard/engine/engine.h"
#include "shard/units/step_formula.h"
#include "shard/units/unit_sizes.h"

namespace fsdp::shard {

/// Returns the sizes of the engine's units, in the order of Engine::units().
std::vector<UnitSizes> unit_sizes(const Engine& engine);

/// Returns the number of elements of the whole model's parameters; for quantised parameters the number of
/// weights, not of bytes. `model`: the model that the engine shards.
int64_t parameter_count(const Engine& engine, const torch::nn::Module& model);

/// Returns unit_sizes() of the engine that fully_shard() would make of the model, before its first pass. The
/// model may be on the meta device. Throws Error(kUsage) as fully_shard() does.
std::vector<UnitSizes> unit_sizes(torch::nn::Module& model, const ShardOptions& options,
                                  const comm::MeshShape& mesh);

/// Computes the formula of the engine's step. The engine's device replaces `step.on_device`.
StepFormula step_formula(const Engine& engine, StepFormulaOptions step = {});

}  // namespace fsdp::shard
