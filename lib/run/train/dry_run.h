#pragma once

// fsdp-train --dry-run: runs the engine as rank 0 of a world that does not exist, and measures the numbers
// that --plan computes.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "shard/engine/unit.h"
#include "tools/plan/plan.h"

namespace fsdp::train {

/// Measurements of one rank and one step, in bytes.
struct DryRun {
  int64_t shards = 0, sources = 0;
  int64_t optimizer = 0;
  int64_t gradients = 0;
  int64_t buffers = 0;      ///< peak of gathered parameters and unreduced gradients together
  int64_t first_arena = 0;  ///< bytes held by the pool of these buffers after the first step
  int64_t arena = 0;        ///< bytes held by the pool after the last step
  shard::Traffic traffic{};
  shard::Traffic attention{};  ///< traffic of attention over mesh.context, not in `traffic`
  shard::Traffic layers{};     ///< traffic of layers over mesh.model, not in `traffic`
  int64_t peak = 0;            ///< peak of tensor memory on the device
  double step_seconds = 0;     ///< compute and the engine's bookkeeping, without communication
  std::string gpu;             ///< name of the GPU; empty: measured on the CPU
  int64_t gpu_reserved = 0;    ///< peak of the allocator's memory on the GPU, with the gaps between tensors
  int64_t gpu_memory = 0;      ///< capacity of the GPU
};

/// Trains some steps on random tokens over a communicator that moves nothing (comm/fake/fake_communicator.h),
/// with the real model, engine and optimizer, and measures. Collectives complete at once in one of the
/// measured steps, at the end of each unit's compute in another, and as late as possible in the third: these
/// are the extremes for a network of any speed, and the highest of their peaks is reported. On a GPU, memory
/// does not depend on when collectives complete, and they are launched at once
/// (comm::make_fake_communicator()). Weights are constants, so that the time to fill a shard is in proportion
/// to the shard alone. Reads no data, checkpoint or weights, and writes nothing; needs the memory of one
/// rank. Counts tensor memory while it runs (util::TensorMemory on the CPU).
DryRun dry_run(const config::Config& config, int world_size, at::Device device = at::kCPU);

/// Returns the plan and the measurements side by side.
std::string dry_run_text(const plan::Plan& plan, const DryRun& measured);
/// Returns the JSON of the plan with a member "measured".
std::string dry_run_json(const plan::Plan& plan, const DryRun& measured);

}  // namespace fsdp::train
