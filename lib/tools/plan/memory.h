#pragma once

// The memory of one rank in a step, from sizes alone.
//
//   shards       weights with padding, 4 bytes per element; 2 if fsdp.param_storage has 16 bits
//   slice        with hybrid_optimizer = "global": the weights of the rank's slice, kept for gathers
//   optimizer    bytes per element: adamw, adam, adamax, adadelta, lamb 8; lion, adagrad 4; sgd 4 with
//                momentum or 0; muon 4 (matrices) or 8; adafactor 4 per row and column of a matrix, on every
//                rank, 4 per element of other tensors, and 4 more per element with beta1
//   gradients    of the shards: 4 bytes per element, or those of reduce_dtype with keep_low_precision_grads;
//                from the end of a unit's backward to the next step. 0 if units are updated in backward (CPU)
//   buffers      gathered parameters and unreduced gradients: the bound of shard/units/step_formula.h
//   codes        with fsdp.gather_dtype or reduce_dtype: the codes of the unit that has most, and with
//                fsdp.error_feedback the errors of all units; on the device
//   activations  tensors that autograd saves and kernels allocate (tools/plan/recorded_pass.h)
//
// The peak of the sum comes from playing a step: the recorded pass with the memory of units (unit_memory.h),
// then the optimizer. Shards in 16 bits are updated in pieces of optim::kPiece elements, one of them in fp32;
// up to 20 MiB that rounding takes on GPUs are not counted.

#include <cstdint>

#include "base/util/free_ranges.h"
#include "setup/config/config.h"
#include "shard/units/step_formula.h"
#include "shard/units/unit_sizes.h"
#include "tools/plan/optimizer_memory.h"
#include "tools/plan/recorded_pass.h"

namespace fsdp::plan {

/// Number of copies of shards on the device with cpu_offload, each as large as the largest such shard
/// (shard::OffloadStreams::kPlaces).
inline constexpr int kShardsOnTheDevice = 2;

/// Bytes of one rank.
struct MemoryPlan {
  int64_t shards = 0;
  int64_t sources = 0;             ///< what units gather from, where that is not the shard
  bool sources_on_device = false;  ///< whether that is on the device even if shards are not
  int64_t optimizer = 0;
  int64_t states_on_host = 0;  ///< part of `optimizer` that is in host memory, and in `pinned`
  int64_t gradients = 0;       ///< after backward
  int64_t buffers = 0;
  int64_t codes = 0;                ///< codes of quantized collectives, and with error feedback their errors
  int64_t frozen = 0;               ///< shards of a second model, which is not trained; not in the sums below
  int64_t outer = 0;                ///< outer weights of local steps, their momentum and exchanges; likewise
  int64_t saved_activations = 0;    ///< when backward begins
  int64_t activations_on_host = 0;  ///< at most; not in the sums below, but in `pinned`
  int64_t peak = 0;                 ///< peak of the sum
  /// Resident memory when training on the CPUs of one host, including free blocks held for reuse and pages
  /// read from other ranks, without libraries.
  int64_t resident = 0;
  int64_t device_peak = 0;  ///< without host memory, which cpu_offload uses
  /// Pinned host memory for shards, states, gradients and activations that are copied to and from the device.
  /// Each gradient counts once: more is taken if the gradient of the next micro-batch arrives before the host
  /// has added it.
  int64_t pinned = 0;

  int64_t beside() const { return frozen + outer; }
};

/// The formula of a step with the config's options.
shard::StepFormula step_formula(const config::Config& config, const Units& units);

/// `units` must be those of the config's model, `pass` its record_pass().
MemoryPlan plan_memory(const config::Config& config, const Units& units, const RecordedPass& pass);
/// MemoryPlan::device_peak alone.
int64_t device_peak(const config::Config& config, const Units& units, const RecordedPass& pass);

/// The memory for buffers of units that suffices for every step at any speed of the network.
struct BufferShapes {
  util::Arena::Shape own;  ///< arena of the rank's pool (shard/engine/buffer_pool.h)
  int64_t common = 0;      ///< bytes that the ranks share (comm::CommonMemory)
};
/// `common`: whether the ranks share memory; `device`: the device of the run.
BufferShapes buffer_shapes(const config::Config& config, const Units& units, bool common, PassDevice device);

/// Memory of NCCL on a rank's GPU, in addition to MemoryPlan.
struct NcclMemory {
  int64_t communicators = 0;  ///< of the groups whose collectives are of tensors on GPUs
  int64_t bytes = 0;          ///< about
};
/// Nothing if NCCL is not used.
NcclMemory nccl_memory(const config::Config& config, const comm::MeshShape& mesh, const Units& units);

/// The traffic of attention over mesh.context in a step (model/parallel/context_attention.h).
shard::Traffic attention_traffic(const config::Config& config, const comm::MeshShape& mesh);
/// The traffic of a built-in model's layers over mesh.model in a step (model/parallel/step_collectives.h).
shard::Traffic layer_traffic(const config::Config& config, const comm::MeshShape& mesh,
                             PassDevice device = PassDevice::kOfConfig);

}  // namespace fsdp::plan
