#pragma once

// The hook that fully_shard() attaches to the module of each unit: it tells the engine when the module's forward
// and backward begin and end.

#include <cstddef>
#include <memory>

#include "nn/hooked.h"
#include "shard/engine.h"

namespace fsdp::shard {

/// Keeps the engine alive as long as the module.
std::shared_ptr<nn::CallHook> make_unit_hook(std::shared_ptr<Engine> engine, size_t unit);

}  // namespace fsdp::shard
