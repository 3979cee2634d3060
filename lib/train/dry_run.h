#pragma once

// fsdp-train --dry-run: the engine itself as rank 0 of a world that is not there, to measure what --plan
// computes.

#include <ATen/core/Tensor.h>

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
  int64_t peak = 0;          ///< of tensor memory where the rank computes
  double step_seconds = 0;   ///< of compute and of the engine's bookkeeping; nothing is communicated
  std::string gpu;           ///< its name; empty: measured on the CPU
  int64_t gpu_reserved = 0;  ///< the most that the allocator took from the GPU, for tensors and between them
  int64_t gpu_memory = 0;    ///< that the GPU has
};

/// Trains some steps on random tokens over a communicator that moves nothing (comm/fake_communicator.h), with
/// the real model, engine and optimizer, and counts. Collectives are done at once in one of the measured
/// steps, at the end of each unit's compute in another, and as late as can be in the third, which are the
/// moments that matter of what a network of any speed may do; the most of them is reported. On a GPU memory
/// does not depend on such moments, and they are launched at once (comm::make_fake_communicator()). Weights
/// are constants, so that a part of a parameter takes no longer than it is large. Reads no data, no
/// checkpoint and no weights, and writes nothing; needs the memory of one rank. Counts tensor memory while it
/// runs (util::TensorMemory on the CPU).
DryRun dry_run(const config::Config& config, int world_size, at::Device device = at::kCPU);

/// Plan and measurement side by side.
std::string dry_run_text(const plan::Plan& plan, const DryRun& measured);
/// The plan's object with "measured" in it.
std::string dry_run_json(const plan::Plan& plan, const DryRun& measured);

}  // namespace fsdp::train
