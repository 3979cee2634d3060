// What training.local_steps requires: replicas that hold everything that their own steps need.

#include <utility>

#include "model/families/objectives.h"
#include "setup/config/checks.h"
#include "setup/config/conflicts.h"

namespace fsdp::config {

std::vector<Conflict> find_conflicts_of_local_steps(const Config& config) {
  const int64_t local_steps = config.training.local_steps;
  if (!config.training.has_local_steps()) return {};
  Conflicts conflicts;
  const auto must = [&](bool condition, const char* key, const auto& expected, const auto& found,
                        const char* reason) {
    conflicts.unless(condition, {key, "training.local_steps"}, "must be ", expected,
                     " with training.local_steps = ", local_steps, ", because ", reason, ", but is ", found,
                     "; change it, or leave training.local_steps out");
  };
  must(config.mesh.dcn != 1, "mesh.dcn", "the number of replicas, or -1", config.mesh.dcn,
       "each replica along that axis takes steps of its own");
  must(shard::is_hybrid(config.fsdp.strategy), "fsdp.strategy", "\"hybrid_shard\" or \"hybrid_shard_zero2\"",
       concat("\"", config.fsdp.strategy, "\""),
       "each replica must have the whole model, cut over its own ranks");
  must(config.fsdp.hybrid_optimizer == shard::HybridOptimizer::kReplicated, "fsdp.hybrid_optimizer",
       "\"replicated\"", concat("\"", config.fsdp.hybrid_optimizer, "\""),
       "each replica must have the whole state of its optimizer");
  must(!config.fsdp.error_feedback, "fsdp.error_feedback", "false", "true",
       "the errors of a rank have no place in the checkpoints of replicas");
  must(config.fsdp.front == Front::kFullyShard, "fsdp.front", "\"fully_shard\"",
       concat("\"", config.fsdp.front, "\""), "the marks of SPMD describe one batch of all replicas");
  must(config.fsdp.param_storage == util::FloatType::kFloat32, "fsdp.param_storage", "\"float32\"",
       concat("\"", config.fsdp.param_storage, "\""),
       "weights in 16 bits would round away much of what a replica has learnt between two exchanges");
  must(config.training.reproducible != Reproducible::kWorldSize, "training.reproducible", "\"run\"",
       "\"world_size\"", "the result depends on the number of replicas");
  const nn::Objective* objective = nn::objectives().find(config.training.objective);
  must(objective == nullptr || objective->rows == nn::ObjectiveRows::kTexts, "training.objective",
       "one that learns from texts", concat("\"", config.training.objective, "\""),
       "rewards and margins are sums over all ranks of a step");
  must(
      config.optimizer.ema_decay == 0, "optimizer.ema_decay", 0, config.optimizer.ema_decay,
      "an average would follow the weights of one replica, and the outer weights average all of them already");
  const optim::OuterOptions& outer = config.outer_optimizer;
  conflicts.unless(outer.fragments <= local_steps, {"outer_optimizer.fragments", "training.local_steps"},
                   "must be at most training.local_steps = ", local_steps,
                   ", because each fragment is exchanged after a step of its own, but is ", outer.fragments,
                   "; change one of the two");
  conflicts.unless(outer.fragment_delay < local_steps,
                   {"outer_optimizer.fragment_delay", "training.local_steps"},
                   "must be below training.local_steps = ", local_steps,
                   ", because an exchange must end before the next one of its fragment begins, but is ",
                   outer.fragment_delay, "; change one of the two");
  return std::move(conflicts.found);
}

}  // namespace fsdp::config
