#pragma once

// fsdp-train --dry-run: runs the engine as rank 0 of a world that does not exist, to measure what --plan
// computes.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "shard/engine/unit.h"
#include "tools/plan/plan.h"

namespace fsdp::train {

/// Measurements of one rank and one step; bytes.
struct DryRun {
  int64_t shards = 0, slice_shards = 0;
  int64_t optimizer = 0;
  int64_t gradients = 0;
  int64_t buffers = 0;      ///< peak of gathered parameters and unreduced gradients together
  int64_t first_arena = 0;  ///< held by the pool of these buffers after the first step
  int64_t arena = 0;        ///< held by it after the last step
  shard::Traffic traffic{};
  shard::Traffic attention{};  ///< of attention over mesh.context, not in `traffic`
  shard::Traffic layers{};     ///< of layers over mesh.model, likewise
  int64_t peak = 0;            ///< of tensor memory where the rank computes
  double step_seconds = 0;     ///< compute and the engine's bookkeeping, without communication
  std::string gpu;             ///< its name; empty: measured on the CPU
  int64_t gpu_reserved = 0;  ///< peak of what the allocator took from the GPU, with the gaps between tensors
  int64_t gpu_memory = 0;    ///< capacity of the GPU
};

/// Trains some steps on random tokens over a communicator that moves nothing (comm/fake/fake_communicator.h), with
/// the real model, engine and optimizer, and measures. Collectives complete at once in one of the measured
/// steps, at the end of each unit's compute in another, and as late as possible in the third: the extremes of
/// what a network of any speed may do, of which the highest peak is reported. On a GPU, memory does not
/// depend on when they complete, and they are launched at once (comm::make_fake_communicator()). Weights are
/// constants, so that filling a shard takes time in proportion to the shard alone. Reads no data, checkpoint
/// or weights, and writes nothing; needs the memory of one rank. Counts tensor memory while it runs
/// (util::TensorMemory on the CPU).
DryRun dry_run(const config::Config& config, int world_size, at::Device device = at::kCPU);

/// Plan and measurement side by side.
std::string dry_run_text(const plan::Plan& plan, const DryRun& measured);
/// The JSON of the plan with a member "measured".
std::string dry_run_json(const plan::Plan& plan, const DryRun& measured);

}  // namespace fsdp::train
