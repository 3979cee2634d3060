#pragma once

// The memory of one rank in a step, from sizes alone.
//
//   shards       master weights, 4 bytes an element, padding included
//   optimizer    adamw, adam: two such; lion: one; sgd: one with momentum, else none; muon: 4 bytes an
//                element of matrices, 8 of others
//   gradients    of the shards: 4 bytes an element, or reduce_dtype's with keep_low_precision_grads; there
//                from the end of a unit's backward to the begin of the next step
//   buffers      gathered parameters and unreduced gradients: the bound of shard/step_formula.h. The pool
//                keeps them from step to step
//   activations  what autograd saves and what kernels take on the way (plan/recorded_pass.h)
//
// The peak is where these are largest together, in a walk through a step: the model's recorded pass, with what
// units take and give back on the way (plan/unit_memory.h), and the optimizer at its end.

#include <cstdint>
#include <vector>

#include "config/config.h"
#include "plan/recorded_pass.h"
#include "shard/traffic.h"
#include "shard/unit_sizes.h"
#include "util/free_ranges.h"

namespace fsdp::plan {

/// With cpu_offload: memory of the device for copies of shards, each as large as the largest shard
/// (shard::OffloadStreams::kPlaces).
inline constexpr int kShardsOnTheDevice = 2;

/// Bytes of one rank.
struct MemoryPlan {
  int64_t shards = 0;
  int64_t optimizer = 0;
  int64_t gradients = 0;
  int64_t buffers = 0;
  int64_t saved_activations = 0;  ///< when backward begins
  int64_t peak = 0;               ///< of all of it together
  /// Trained on the CPUs of one host: with blocks that wait to be used again and what is read of other ranks'
  /// memory, without libraries.
  int64_t resident = 0;
  int64_t device_peak = 0;  ///< without what cpu_offload keeps in host memory
};

/// `units` are those of the config's model, `pass` is the config's (record_pass()).
MemoryPlan plan_memory(const config::Config& config, const std::vector<shard::UnitSizes>& units,
                       const RecordedPass& pass);
/// MemoryPlan::device_peak alone.
int64_t device_peak(const config::Config& config, const std::vector<shard::UnitSizes>& units,
                    const RecordedPass& pass);

/// The memory for buffers of units with which no step asks for more, however fast the network is.
struct BufferShapes {
  util::Arena::Shape own;  ///< of the rank's pool (shard/buffer_pool.h)
  int64_t common = 0;      ///< of what the ranks have in common (comm::CommonMemory)
};
/// `common`: whether they have such memory.
BufferShapes buffer_shapes(const config::Config& config, const std::vector<shard::UnitSizes>& units,
                           bool common);

/// What fsdp::optim keeps between steps. Nothing is frozen.
int64_t optimizer_state_bytes(const optim::OptimizerOptions& options,
                              const std::vector<shard::UnitSizes>& units);

/// What a rank exchanges for the update (shard/matrix_exchange.h).
shard::Traffic optimizer_traffic(const optim::OptimizerOptions& options,
                                 const std::vector<shard::UnitSizes>& units);

}  // namespace fsdp::plan
