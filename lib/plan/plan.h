#pragma once

// fsdp-plan, and fsdp-train --plan: what a run needs, on machines that need not be there. From the config
// alone: the model is built on meta tensors, its units are chosen as fully_shard() chooses them, one pass of it
// is recorded (plan/recorded_pass.h), and everything else is arithmetic. No other processes, no data.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/mesh_shape.h"
#include "config/config.h"
#include "plan/memory.h"
#include "plan/time.h"
#include "shard/step_formula.h"
#include "shard/unit_sizes.h"

namespace fsdp::plan {

/// The machines that a plan is for.
struct PlanOptions {
  int64_t world_size = 0;           ///< 0: the product of [mesh] where every axis has a size, else 1
  double memory_gib = 80;           ///< of a rank's device
  double bandwidth_gbps = 400;      ///< Gbit/s that a rank receives; with gpus_per_node from other nodes
  double dcn_bandwidth_gbps = 100;  ///< the same between replicas
  double flops_tflops = 150;        ///< TFLOP/s that a rank sustains
  int64_t gpus_per_node = 0;        ///< 0: all ranks are linked alike
  double node_bandwidth_gbps = 0;   ///< from ranks of the same node; 0: as from others
  std::string gpu = {};             ///< whose data sheet these are of; empty: none
  double peak_tflops = 0;  ///< TFLOP/s that its data sheet gives, of which MFU is a share; 0: not known
  double tokens = 0;       ///< that the model is to be trained on; 0: not known
};

/// A change of the config, and what is needed with it and with those before it.
struct Advice {
  std::string change;  ///< "activation_checkpointing.mode = full"
  int64_t device_peak = 0;
  bool fits = false;
};

struct Plan {
  config::Config config;
  PlanOptions machines;  ///< world_size resolved
  comm::MeshShape mesh;
  int64_t parameters = 0;
  std::vector<shard::UnitSizes> units;
  shard::StepFormula step;
  shard::Traffic optimizer_traffic;  ///< of whole matrices (muon); not in `step`
  MemoryPlan memory;
  TimePlan time;
  /// Largest data.micro_batch_size whose device peak is within memory_gib; 0: not even 1 is.
  int64_t largest_micro_batch = 0;
  std::vector<Advice>
      advice;  ///< where the config does not fit; each on top of those before, to the first that does
  std::vector<std::string> warnings;  ///< what had better be otherwise whether it fits or not

  int64_t tokens_per_step() const;
  double tokens_per_second() const;
  /// TFLOP/s of a rank that the model's definition asks for, without what recomputation adds.
  double model_tflops() const;
  int64_t memory_limit() const;
  bool fits() const { return memory.device_peak <= memory_limit(); }
};

/// The world size that the options or the config give.
int planned_world_size(const config::Config& config, const PlanOptions& options);

/// Throws Error(kUsage) for a mesh that the world does not fill and for numbers that no machine has.
Plan make_plan(const config::Config& config, const PlanOptions& options);

/// The units of the config's model in such a world, as the engine would have them in its second step.
std::vector<shard::UnitSizes> planned_units(const config::Config& config, const comm::MeshShape& mesh);

}  // namespace fsdp::plan
