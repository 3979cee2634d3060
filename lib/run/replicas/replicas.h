#pragma once

// train_with_replicas(): a process of a run with replicas (fsdp-launch --replica-size). The process takes
// part in one epoch of the launcher after another (tools/launch/epoch.h), each with a communicator, a mesh,
// an engine and a Trainer of its own. Between two epochs it keeps the state of the run in memory
// (kept_state.h).
//
// A replica here is a group of processes that fsdp-launch starts and replaces as a whole; its ranks are those
// along the mesh's axes below dcn. An epoch here is a period with a fixed set of replicas, not a pass over
// the data.
//
// The samples of a step are those of training.global_batch_size, whatever the number of replicas, and with
// training.reproducible = "world_size" the result of a step does not depend on which rank has which samples.
// The replicas that are left therefore repeat an interrupted step with the result that it would have had.

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "comm/api/activity.h"
#include "comm/api/communicator.h"
#include "comm/api/launch_environment.h"
#include "run/train/trainer.h"
#include "setup/config/config.h"
#include "tools/launch/worker_channel.h"

namespace fsdp::train {

struct ReplicaHooks {
  /// Returns the communicator of all ranks of an epoch. Called in a thread of its own, for which nobody waits
  /// if the epoch is broken off meanwhile. Requires: the function shares or owns all that it uses.
  std::function<std::shared_ptr<comm::Communicator>(const comm::LaunchEnvironment&)> connect;
  std::function<bool()> stop_requested;
  std::shared_ptr<comm::Activity> activity;
  ProgressOutput progress;  ///< output for the first rank of an epoch
};

struct ReplicaSummary : RunSummary {
  bool is_first = false;  ///< whether this process was the first rank of the last epoch
};

/// Trains as the config says. Returns nullopt if a stop is requested between two epochs. `home`: this
/// process's place among all processes of the run. Throws AgreedError(kUsage) on every rank for a config with
/// which replicas cannot outlive each other, and the errors of Trainer and WorkerChannel except those about
/// lost peers.
std::optional<ReplicaSummary> train_with_replicas(const config::Config& config,
                                                  const comm::LaunchEnvironment& home,
                                                  launch::WorkerChannel& channel, const ReplicaHooks& hooks);

/// Returns the reason why the config cannot be trained with any number of replicas from epoch.min_replicas to
/// `replicas`; empty if it can.
std::string obstacle_to_replicas(const config::Config& config, int replicas, const launch::Epoch& epoch);

}  // namespace fsdp::train
