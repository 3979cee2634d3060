#pragma once

// fsdp-train --dry-run: the engine itself as rank 0 of a world that is not there, to measure what --plan
// computes.

#include <cstdint>
#include <string>

#include "plan/plan.h"
#include "shard/unit.h"

namespace fsdp::train {

/// What was counted, of one rank and one step; bytes.
struct DryRun {
  int64_t shards = 0;
  int64_t optimizer = 0;
  int64_t gradients = 0;
  int64_t buffers = 0;      ///< most gathered parameters and unreduced gradients together
  int64_t first_arena = 0;  ///< what the pool of these holds after the first step
  int64_t arena = 0;        ///< and after the last
  shard::Traffic traffic{};
  int64_t peak = 0;         ///< of tensor memory
  double step_seconds = 0;  ///< of compute and of the engine's bookkeeping; nothing is communicated
};

/// Trains some steps on random tokens over a communicator that moves nothing (comm/idle_communicator.h), with
/// the real model, engine and optimizer, and counts. Collectives are done at once in one of the measured
/// steps, at the end of each unit's compute in another, and as late as can be in the third, which are the
/// moments that matter of what a network of any speed may do; the most of them is reported. Reads no data and
/// no checkpoint, and writes nothing; needs the memory of one rank. Counts tensor memory while it runs
/// (util::TensorMemory).
DryRun dry_run(const config::Config& config, int world_size);

/// Plan and measurement side by side.
std::string dry_run_text(const plan::Plan& plan, const DryRun& measured);
/// The plan's object with "measured" in it.
std::string dry_run_json(const plan::Plan& plan, const DryRun& measured);

}  // namespace fsdp::train
