#pragma once

// UnitHook: what fully_shard() attaches to the stage of each unit. It tells the engine when the stage's forward
// and backward begin and end.

#include <cstddef>
#include <memory>

#include "nn/stage.h"
#include "shard/engine.h"

namespace fsdp::shard {

/// Keeps the engine alive as long as the stage.
std::shared_ptr<nn::Surround> make_unit_hook(std::shared_ptr<Engine> engine, size_t unit);

}  // namespace fsdp::shard
