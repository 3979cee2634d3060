#pragma once

// training.global_batch_size: the samples of a step, whatever the number of ranks.

#include <cstdint>

#include "config/config.h"

namespace fsdp::config {

/// Makes training.gradient_accumulation_steps what training.global_batch_size takes on so many ranks; without
/// such a size changes nothing. Throws util::Error(kUsage), with the numbers and the nearest ones that would
/// do, where micro-batches of all ranks do not divide it or the given micro-batches make another batch.
void resolve_batch(Config& config, int64_t world_size);

/// Samples a step of all ranks together, after the growth of training.batch_warmup_steps. The config's batch
/// is resolved.
int64_t samples_per_step(const Config& config, int64_t world_size);

}  // namespace fsdp::config
