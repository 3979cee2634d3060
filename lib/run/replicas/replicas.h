#pragma once

// A process of a run with replicas (fsdp-launch --replica-size). It takes part in one epoch of the run after
// another (tools/launch/epoch.h), each with a communicator, a mesh, an engine and a Trainer of its own, and between
// two epochs keeps the state of the run in memory (kept_state.h).
//
// The samples of a step are those of training.global_batch_size, whatever the number of replicas, and
// training.reproducible = "world_size" makes the result of a step independent of how they are shared out. So
// a step that was interrupted is done again by the replicas that are left, with the result that it would have
// had.

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
  /// The communicator of all ranks of an epoch. Called in a thread of its own, which is left to itself when
  /// the epoch is broken off meanwhile: it must share or own what it uses.
  std::function<std::shared_ptr<comm::Communicator>(const comm::LaunchEnvironment&)> connect;
  std::function<bool()> stop_requested;
  std::shared_ptr<comm::Activity> activity;
  ProgressOutput progress;  ///< of the first rank of an epoch
};

struct ReplicaSummary : RunSummary {
  bool is_first = false;  ///< this process was the first of the last epoch
};

/// Trains as the config says; nullopt when a stop is requested between two epochs. `home`: this process's
/// place among all of the run. Throws AgreedError(kUsage) on every rank for a config with which replicas
/// cannot outlive each other; otherwise as Trainer and WorkerChannel, but for lost peers.
std::optional<ReplicaSummary> train_with_replicas(const config::Config& config,
                                                  const comm::LaunchEnvironment& home,
                                                  launch::WorkerChannel& channel, const ReplicaHooks& hooks);

/// Why the config cannot be trained with this many replicas, of which epoch.min_replicas at least are in any
/// epoch; empty if it can.
std::string obstacle_to_replicas(const config::Config& config, int replicas, const launch::Epoch& epoch);

}  // namespace fsdp::train
