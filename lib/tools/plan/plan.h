#pragma once

// fsdp-plan and fsdp-train --plan: the memory and time that a run needs, on machines that need not exist,
// from the config alone. The model is built on meta tensors, its units are chosen as by fully_shard(), one
// pass is recorded (tools/plan/recorded_pass.h), and the rest is arithmetic. No other processes, no data.

#include <cstdint>
#include <string>
#include <vector>

#include "comm/options/mesh_shape.h"
#include "setup/config/config.h"
#include "shard/units/unit_sizes.h"
#include "tools/plan/local_steps.h"
#include "tools/plan/memory.h"
#include "tools/plan/recomputation.h"
#include "tools/plan/recorded_pass.h"
#include "tools/plan/time.h"

namespace fsdp::plan {

/// The machines that a plan is for.
struct PlanOptions {
  int64_t world_size = 0;            ///< 0: the product of [mesh] if every axis has a size, else 1
  double memory_gib = 80;            ///< memory of a rank's device
  double bandwidth_gbps = 400;       ///< Gbit/s that a rank receives; with gpus_per_node, from other nodes
  double dcn_bandwidth_gbps = 100;   ///< Gbit/s between replicas
  double host_bandwidth_gbps = 200;  ///< Gbit/s between a device and the memory of its host, each way
  double host_memory_gib = 128;      ///< memory of the host that a rank may take for activations
  double flops_tflops = 150;         ///< TFLOP/s that a rank sustains
  int64_t gpus_per_node = 0;         ///< 0: all ranks are linked alike
  double node_bandwidth_gbps = 0;    ///< Gbit/s inside a node; 0: bandwidth_gbps
  std::string gpu = {};              ///< the GPU with this data sheet; empty: none
  double peak_tflops = 0;            ///< TFLOP/s of the data sheet, the base of MFU; 0: unknown
  double tokens = 0;                 ///< tokens of the whole training; 0: unknown
  double product_tflops = 0;         ///< TFLOP/s of large products alone, for a simulation; 0: unknown

  /// Whether neither a GPU nor a rate was given.
  bool rate_is_assumed() const { return gpu.empty() && product_tflops == 0; }

  MachineSpeed speed() const;
};

/// A change of the config, and the needs of the run with it and all changes before it.
struct Advice {
  std::string change;  ///< "activation_checkpointing.mode = full"
  int64_t device_peak = 0;
  double step_seconds = 0;
  double tokens_per_second = 0;
  bool fits = false;
};

struct Plan {
  config::Config config;
  PlanOptions machines;  ///< world_size resolved
  comm::MeshShape mesh;
  int64_t parameters = 0;
  Units units;
  shard::StepFormula step;
  shard::Traffic optimizer_traffic;  ///< traffic of the update (muon, lamb, adafactor), not in `step`
  shard::Traffic attention_traffic;  ///< traffic of attention over mesh.context, not in `step`
  shard::Traffic layer_traffic;      ///< traffic of layers over mesh.model, not in `step`
  MemoryPlan memory;
  TimePlan time;
  OuterPlan outer;  ///< the exchanges of training.local_steps, not in `step`
  FlopsAToken flops;
  Recomputation recomputation;        ///< set if activation_checkpointing.mode has a budget
  int64_t largest_micro_batch = 0;    ///< largest data.micro_batch_size that fits; 0: none
  std::vector<Advice> advice;         ///< if the config does not fit: cumulative changes until it does
  std::vector<std::string> warnings;  ///< improvements, whether it fits or not

  int64_t tokens_per_step() const;
  double tokens_per_second() const;
  /// TFLOP/s of a rank.
  double tflops(double flops_a_token) const { return tokens_per_second() * flops_a_token / 1e12 / ranks(); }
  double model_tflops() const { return tflops(flops.model); }
  double hardware_tflops() const { return tflops(flops.hardware); }
  /// Products of a rank in a step that are computed again for backward.
  double recomputed_flops() const {
    return static_cast<double>(tokens_per_step()) * flops.recomputed() / ranks();
  }
  double ranks() const { return static_cast<double>(machines.world_size); }
  int64_t memory_limit() const;  ///< what a second model and outer weights leave
  bool fits() const { return memory.device_peak <= memory_limit(); }
};

/// The world size given by the options or the config.
int planned_world_size(const config::Config& config, const PlanOptions& options);

/// Throws Error(kUsage) for a mesh that does not match the world size and for impossible numbers.
Plan make_plan(const config::Config& config, const PlanOptions& options);

/// make_plan() without what it searches: the largest micro-batch, warnings and advice.
Plan plan_needs(const config::Config& config, const PlanOptions& options);

/// Changes of the plan's config, the cheapest first, until the run fits or nothing is left to change. `given`
/// is the config before batches were resolved.
std::vector<Advice> advise(const Plan& plan, const config::Config& given);

/// The units of the config's model on such a mesh, as the engine has them from its second step on. With
/// training.local_steps, those of one replica.
Units planned_units(const config::Config& config, const comm::MeshShape& mesh);

/// The largest data.micro_batch_size with which the config fits into `limit` bytes; 0: none.
int64_t largest_micro_batch(config::Config config, const Units& units, int64_t limit);

}  // namespace fsdp::plan
