#pragma once

// What the exchanges of training.local_steps (state/outer/outer_optimizer.h) add to the steps of a replica.

#include "setup/config/config.h"
#include "tools/plan/plan.h"
#include "tools/simulate/cluster.h"

namespace fsdp::simulate {

/// Means per step. All is 0 without local steps.
struct ReplicaExchange {
  double seconds = 0;                 ///< for which a step waits
  double bytes_from_other_hosts = 0;  ///< that each host receives
};

/// `cluster` is that of all replicas, and `step_seconds` are those of a replica. Exchanges that run beside
/// steps are hidden as far as they take no longer than these.
ReplicaExchange simulate_exchange(const config::Config& config, const plan::Units& units,
                                  const Cluster& cluster, double step_seconds);

}  // namespace fsdp::simulate
