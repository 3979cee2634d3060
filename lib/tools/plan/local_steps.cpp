#include "tools/plan/local_steps.h"

#include <algorithm>

#include "state/outer/exchange.h"

namespace fsdp::plan {

comm::MeshShape mesh_of_step(const config::Config& config, const comm::MeshShape& mesh) {
  comm::MeshShape of_step = mesh;
  if (config.training.has_local_steps()) of_step.dcn = 1;
  return of_step;
}

OuterPlan plan_outer(const config::Config& config, const comm::MeshShape& mesh,
                     const std::vector<shard::UnitSizes>& units, const MachineSpeed& speed,
                     double step_seconds) {
  if (!config.training.has_local_steps()) return {};
  const optim::OuterOptions& options = config.outer_optimizer;
  OuterPlan plan{.replicas = mesh.dcn, .every_steps = config.training.local_steps, .traffic = {}};
  const auto replicas = static_cast<double>(mesh.dcn);
  int64_t numbers = 0, pieces = 0, payload = 0;
  for (const shard::UnitSizes& unit : units) {
    if (!unit.has_trainable_parameters) continue;
    numbers += unit.shard_numel;
    pieces += (unit.shard_numel + optim::Exchange::kPiece - 1) / optim::Exchange::kPiece;
    payload += optim::Exchange::payload_bytes(unit.shard_numel, options.reduce_dtype, mesh.dcn);
  }
  plan.state_bytes = 4 * numbers * (options.momentum > 0 ? 2 : 1);
  if (mesh.dcn > 1) plan.traffic = {.all_reduces = pieces, .all_reduce_bytes = payload};
  const double received = static_cast<double>(payload) * 2 * (replicas - 1) / replicas;
  plan.seconds = received / speed.replica_bytes_per_second;
  // Fragments have about as many bytes each; several are under way if the delay is longer than their
  // distance.
  const auto fragments = static_cast<double>(options.fragments);
  const double of_fragment = plan.seconds / fragments;
  plan.exposed_seconds =
      fragments * std::max(0.0, of_fragment - static_cast<double>(options.fragment_delay) * step_seconds);
  if (options.fragment_delay > 0) {
    const double at_once = std::min(fragments, 1 + static_cast<double>(options.fragment_delay) * fragments /
                                                       static_cast<double>(plan.every_steps));
    // The numbers in another type, or codes to send and codes that were received.
    const int64_t sent = options.reduce_dtype == optim::ExchangeType::kFloat32    ? 0
                         : options.reduce_dtype == optim::ExchangeType::kBFloat16 ? payload
                                                                                  : 2 * payload;
    plan.exchange_bytes = static_cast<int64_t>(static_cast<double>(4 * numbers + sent) * at_once / fragments);
  }
  return plan;
}

}  // namespace fsdp::plan
