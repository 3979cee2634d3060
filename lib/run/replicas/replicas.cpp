#include "run/replicas/replicas.h"

#include <chrono>
#include <future>
#include <vector>

#include "base/util/error.h"
#include "base/util/limits.h"
#include "base/util/log.h"
#include "comm/api/group_failure.h"
#include "run/replicas/kept_state.h"
#include "setup/config/global_batch.h"
#include "shard/units/option_conflicts.h"
#include "shard/units/options.h"
#include "state/manifest/folders.h"

namespace fsdp::train {
namespace {

comm::LaunchEnvironment environment_of(const launch::Epoch& epoch, const comm::LaunchEnvironment& home) {
  comm::LaunchEnvironment environment = home;
  environment.rank = epoch.rank_of(home.rank);
  environment.world_size = epoch.world_size();
  environment.local_rank = environment.local_world_size = 0;
  const int first_of_node = home.rank - home.local_rank;
  for (int rank = first_of_node; rank < first_of_node + home.local_world_size; ++rank) {
    if (epoch.rank_of(rank) < 0) continue;
    ++environment.local_world_size;
    environment.local_rank += rank < home.rank;
  }
  environment.master_addr = epoch.master_addr;
  environment.master_port = epoch.master_port;
  environment.launcher_keeps_store = false;
  environment.restarts = epoch.number;
  return environment;
}

config::Config config_of(const launch::Epoch& epoch, const config::Config& config,
                         const comm::LaunchEnvironment& environment) {
  config::Config own = config;
  const bool has_hosts = environment.local_world_size < environment.world_size;
  own.mesh.ranks_of_host = has_hosts && shard::codes_links(config.fsdp) ? environment.local_world_size : 0;
  // A state that all ranks have lost is in the newest checkpoint, whatever the run began with.
  const bool has_checkpoint = !checkpoint::find_checkpoints(config.run.output_dir).complete.empty();
  if (epoch.number > 1 && epoch.step < 0 && has_checkpoint) own.checkpoint.resume = "auto";
  return own;
}

class ReplicaWorker {
 public:
  ReplicaWorker(const config::Config& config, const comm::LaunchEnvironment& home,
                launch::WorkerChannel& channel, const ReplicaHooks& hooks)
      : config_(config), home_(home), channel_(channel), hooks_(hooks) {}

  std::optional<ReplicaSummary> run() {
    const launch::WorkerChannel::Wait wait{.give_up = hooks_.stop_requested};
    auto epoch = channel_.ready(wait);
    while (epoch) {
      const std::string obstacle =
          obstacle_to_replicas(config_, home_.world_size / epoch->replica_size, *epoch);
      if (!obstacle.empty()) throw comm::AgreedError(ErrorKind::kUsage, obstacle);
      suspects_.clear();
      if (auto summary = take_part(*epoch)) return summary;
      hooks_.activity->leave_step();
      epoch = channel_.stopped(
          {.step = kept_.step(), .can_finish_step = kept_.can_finish_step(), .suspects = suspects_}, wait);
    }
    return std::nullopt;
  }

 private:
  /// Returns nullopt once the epoch has been left.
  std::optional<ReplicaSummary> take_part(const launch::Epoch& epoch) {
    kept_.begin(epoch);
    const comm::LaunchEnvironment environment = environment_of(epoch, home_);
    const bool is_first = environment.rank == 0;
    std::unique_ptr<Trainer> trainer;
    try {
      trainer = std::make_unique<Trainer>(
          config_of(epoch, config_, environment), connect(environment),
          is_first ? hooks_.progress : ProgressOutput{},
          RunHooks{.stop_requested = hooks_.stop_requested,
                   .activity = hooks_.activity,
                   .membership =
                       MembershipHooks{.home_rank = home_.rank, .memory = &kept_, .change_is_due = [this] {
                                         return channel_.change_is_due();
                                       }}});
      kept_.forget();
      ReplicaSummary summary{trainer->run(), is_first};
      if (!summary.left) return summary;
    } catch (const util::Error& error) {
      if (error.kind() != ErrorKind::kPeerLost && error.kind() != ErrorKind::kTimeout) throw;
      if (const auto* failure = dynamic_cast<const comm::GroupError*>(&error)) {
        suspects_ = failure->failure().silent_ranks;
      }
      util::log_debug(concat("epoch ", epoch.number, " ends here: ", error.what()));
    }
    if (trainer) trainer->keep_state();
    return std::nullopt;
  }

  /// Connects this process, while others may be lost before they connect.
  std::shared_ptr<comm::Communicator> connect(comm::LaunchEnvironment environment) {
    environment.is_broken_off = [this] { return channel_.is_broken_off(); };
    using Connected = std::shared_ptr<comm::Communicator>;
    auto task = std::make_shared<std::packaged_task<Connected()>>(
        [connect = hooks_.connect, environment] { return connect(environment); });
    std::future<Connected> connected = task->get_future();
    util::start_thread([task] { (*task)(); }).detach();
    constexpr std::chrono::milliseconds kLookAgain{10};
    while (connected.wait_for(kLookAgain) != std::future_status::ready) {
      if (!channel_.is_broken_off() && !hooks_.stop_requested()) continue;
      fail(ErrorKind::kPeerLost, "the ranks of this epoch no longer connect");
    }
    return connected.get();
  }

  const config::Config& config_;
  const comm::LaunchEnvironment& home_;
  launch::WorkerChannel& channel_;
  const ReplicaHooks& hooks_;
  KeptState kept_;
  std::vector<int> suspects_;
};

}  // namespace

std::string obstacle_to_replicas(const config::Config& config, int replicas, const launch::Epoch& epoch) {
  const auto must = [&](const std::string& key, const std::string& expected, const std::string& reason,
                        const std::string& found) {
    return concat(key, " must be ", expected, " with fsdp-launch --replica-size ", epoch.replica_size,
                  ", because ", reason, ", but is ", found, "; change it, or start without --replica-size");
  };
  if (config.training.has_local_steps()) {
    const optim::OuterOptions& outer = config.outer_optimizer;
    if (outer.fragments > 1 || outer.fragment_delay > 0) {
      return must("outer_optimizer.fragments", "1, and fragment_delay 0,",
                  "replicas that leave or join must all have the result of an exchange or none",
                  concat(outer.fragments, " with fragment_delay ", outer.fragment_delay));
    }
  } else if (config.training.reproducible != config::Reproducible::kWorldSize) {
    return must("training.reproducible", "\"world_size\", or training.local_steps above 0,",
                "a step must have the same result with any number of replicas",
                concat("\"", config.training.reproducible, "\""));
  }
  const int64_t of_a_replica = config.mesh.data * config.mesh.context * config.mesh.model;
  if (config.mesh.dcn != -1 || of_a_replica != epoch.replica_size) {
    return must("mesh.dcn", concat("-1 and mesh.data ", epoch.replica_size),
                "replicas are the ranks along dcn, and their number changes",
                concat(config.mesh.dcn, " and ", config.mesh.data));
  }
  if (!shard::is_hybrid(config.fsdp.strategy) && !shard::shards_nothing(config.fsdp.strategy)) {
    return must("fsdp.strategy", "hybrid_shard, hybrid_shard_zero2 or no_shard",
                "each replica must have the whole state", concat("\"", config.fsdp.strategy, "\""));
  }
  if (config.training.global_batch_size == 0) {
    return must("training.global_batch_size", "given",
                "the samples of a step are those of any number of replicas", "0");
  }
  if (config.logging.trace_communication) {
    return must("logging.trace_communication", "false", "ranks change their numbers", "true");
  }
  for (int number = epoch.min_replicas; number <= replicas; ++number) {
    config::Config with = config;
    try {
      config::resolve_batch(with, int64_t{number} * epoch.replica_size);
    } catch (const util::Error& error) {
      return concat("with ", number, " of the ", replicas, " replicas of fsdp-launch --replica-size ",
                    epoch.replica_size, " (--min-replicas ", epoch.min_replicas, "), ", error.what());
    }
  }
  return "";
}

std::optional<ReplicaSummary> train_with_replicas(const config::Config& config,
                                                  const comm::LaunchEnvironment& home,
                                                  launch::WorkerChannel& channel, const ReplicaHooks& hooks) {
  return ReplicaWorker(config, home, channel, hooks).run();
}

}  // namespace fsdp::train
