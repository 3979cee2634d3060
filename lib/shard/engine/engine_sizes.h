#pragma once

// The sizes of the units (shard/units/unit_sizes.h) and the formula of a step (shard/units/step_formula.h) of engines and
// modules. Nothing here is collective.

#include <torch/nn/module.h>

#include <vector>

#include "shard/engine/engine.h"
#include "shard/units/step_formula.h"
#include "shard/units/unit_sizes.h"

namespace fsdp::shard {

/// In the order of Engine::units().
std::vector<UnitSizes> unit_sizes(const Engine& engine);

/// Elements of the whole model's parameters; of quantised ones, those of the weights, not their bytes. model: the one
/// that the engine shards.
int64_t parameter_count(const Engine& engine, const torch::nn::Module& model);

/// unit_sizes() of the engine that fully_shard() would make of the model, before its first pass. The model
/// may lie on the meta device. Throws Error(kUsage) as fully_shard() does.
std::vector<UnitSizes> unit_sizes(torch::nn::Module& model, const ShardOptions& options,
                                  const comm::MeshShape& mesh);

/// `step.on_device` is that of the engine.
StepFormula step_formula(const Engine& engine, StepFormulaOptions step = {});

}  // namespace fsdp::shard
