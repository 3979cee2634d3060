#pragma once

// The memory and the traffic of a rank's optimizer, from sizes alone.

#include <cstdint>

#include "setup/config/config.h"
#include "shard/units/unit_sizes.h"
#include "tools/plan/recorded_pass.h"

namespace fsdp::plan {

/// Optimizer state of this rank, if all parameters are trainable.
int64_t optimizer_state_bytes(const optim::OptimizerOptions& options, const Units& units);

/// The traffic of the update: whole matrices (shard/state/matrix_exchange.h) and sums over tensors
/// (state/optim/tensor_optimizer.h).
shard::Traffic optimizer_traffic(const optim::OptimizerOptions& options, const Units& units);

/// Whether the states are in host memory, and updated by the device.
bool streams_states(const config::Config& config, const RecordedPass& pass);

/// The states that are in host memory then; the average of the weights is where these are.
int64_t streamed_states(const config::Config& config, const Units& units, const RecordedPass& pass);

/// Memory on the device for pieces of a unit that come from the host and go there.
int64_t staged_bytes(const config::Config& config, const shard::UnitSizes& unit);

/// Temporaries of clipping and of the optimizer, for its largest unit.
int64_t update_temporaries(const config::Config& config, const Units& units);

}  // namespace fsdp::plan
