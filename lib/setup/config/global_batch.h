#pragma once

// training.global_batch_size: samples per step, whatever the number of ranks.

#include <cstdint>

#include "setup/config/config.h"

namespace fsdp::config {

/// Number of ranks over which the rows of a batch are distributed: those of mesh.dcn x mesh.data. Throws as
/// comm::resolve_mesh() does.
int64_t row_ranks(const Config& config, int64_t world_size);

/// Derives training.gradient_accumulation_steps from training.global_batch_size; without that size changes
/// nothing. Throws util::Error(kUsage), with the nearest numbers that work, where one micro-batch of all
/// ranks does not divide the size, or where the given gradient_accumulation_steps contradict it. With
/// training.reproducible = "world_size", micro-batches are then divided until their number of samples is a
/// power of two.
void resolve_batch(Config& config, int64_t world_size);

/// Samples per step over all ranks, after training.batch_warmup_steps. Requires: resolve_batch() was called.
int64_t samples_per_step(const Config& config, int64_t world_size);

/// Sets data.micro_batch_size, with data.max_tokens, to the number of rows of data.sequence_length in the
/// largest micro-batch, rounded up. Plans and dry runs call it after resolve_batch().
void plan_largest_batches(Config& config);

}  // namespace fsdp::config
