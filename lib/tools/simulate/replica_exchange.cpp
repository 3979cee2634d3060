#include "tools/simulate/replica_exchange.h"

#include <algorithm>

#include "state/outer/exchange.h"
#include "tools/simulate/collective_cost.h"
#include "tools/simulate/unit_calls.h"

namespace fsdp::simulate {
namespace {

/// Times that an update reads or writes the weights: the outer weights, their momentum and the weights.
constexpr double kPassesOfUpdate = 8;

}  // namespace

ReplicaExchange simulate_exchange(const config::Config& config, const plan::Units& units,
                                  const Cluster& cluster, double step_seconds) {
  const comm::MeshShape& mesh = cluster.mesh;
  if (!config.training.has_local_steps() || mesh.dcn < 2) return {};
  const optim::OuterOptions& options = config.outer_optimizer;
  const RankGroup group = group_of(cluster, mesh.dcn, mesh.world_size() / mesh.dcn, true);
  const double ranks_of_host =
      static_cast<double>(cluster.ranks_of_host > 0 ? cluster.ranks_of_host : mesh.world_size());
  double seconds = 0, received = 0;
  for (const shard::UnitSizes& unit : units) {
    if (!unit.has_trainable_parameters) continue;
    for (int64_t left = unit.shard_numel; left > 0; left -= optim::Exchange::kPiece) {
      const int64_t count = std::min(left, optim::Exchange::kPiece);
      const auto bytes =
          static_cast<double>(optim::Exchange::payload_bytes(count, options.reduce_dtype, mesh.dcn));
      const auto exact = static_cast<double>(4 * count);
      const bool is_coded = options.reduce_dtype == optim::ExchangeType::kInt8 ||
                            options.reduce_dtype == optim::ExchangeType::kInt4;
      const CollectiveCall call{.kind = CollectiveKind::kAllReduce,
                                .bytes = bytes,
                                .group = group,
                                .uncoded_bytes = is_coded ? exact : 0};
      seconds += seconds_alone(cost_of(call, cluster.backend, cluster.network), cluster.network,
                               cluster.cores_of_rank);
      received += ranks_of_host * bytes_from_other_hosts(call, cluster.backend);
      seconds += cluster.network.copy_seconds(kPassesOfUpdate * exact);
    }
  }
  const auto fragments = static_cast<double>(options.fragments);
  const double hidden = static_cast<double>(options.fragment_delay) * step_seconds;
  const double waits = fragments * std::max(0.0, seconds / fragments - hidden);
  const auto steps = static_cast<double>(config.training.local_steps);
  return {.seconds = waits / steps, .bytes_from_other_hosts = received / steps};
}

}  // namespace fsdp::simulate
