#pragma once

// What training.local_steps costs beside the steps of a replica (state/outer/outer_optimizer.h).

#include <cstdint>

#include "comm/options/mesh_shape.h"
#include "setup/config/config.h"
#include "shard/units/unit_sizes.h"
#include "tools/plan/time.h"

namespace fsdp::plan {

/// All is 0 without local steps.
struct OuterPlan {
  int64_t replicas = 0;
  int64_t every_steps = 0;     ///< steps between two exchanges of the whole model
  int64_t state_bytes = 0;     ///< outer weights and momentum of a rank, where the shards are
  int64_t exchange_bytes = 0;  ///< memory of the exchanges that run beside steps, at most
  shard::Traffic traffic;      ///< traffic of a rank in an exchange of the whole model
  double seconds = 0;          ///< seconds of that exchange
  double exposed_seconds = 0;  ///< part of it for which steps wait

  bool is_on() const { return every_steps > 0; }
  double bytes_per_step() const {
    return is_on() ? static_cast<double>(traffic.payload()) / static_cast<double>(every_steps) : 0;
  }
  double exposed_seconds_per_step() const {
    return is_on() ? exposed_seconds / static_cast<double>(every_steps) : 0;
  }
  int64_t bytes() const { return state_bytes + exchange_bytes; }
};

/// The mesh of the ranks that take a step together: a replica of the run's mesh with local steps.
comm::MeshShape mesh_of_step(const config::Config& config, const comm::MeshShape& mesh);

/// `units`: planned_units(). `step_seconds`: of a step of a replica. An all-reduce of b bytes over R replicas
/// takes 2 (R - 1) / R * b at the speed between replicas.
OuterPlan plan_outer(const config::Config& config, const comm::MeshShape& mesh,
                     const std::vector<shard::UnitSizes>& units, const MachineSpeed& speed,
                     double step_seconds);

}  // namespace fsdp::plan
