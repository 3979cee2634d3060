#include "shard/spmd/spmd_fully_shard.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/util/error.h"
#include "base/util/log.h"
#include "base/util/text.h"
#include "shard/engine/fully_shard.h"
#include "shard/engine/inner_modules.h"
#include "shard/engine/wrap.h"
#include "shard/spmd/model_marks.h"
#include "shard/spmd/spmd_hook.h"
#include "shard/units/group_sizes.h"
#include "shard/units/option_conflicts.h"

namespace fsdp::shard {
namespace {

/// The dimension that a parameter's mark cuts over the axes of shards; nullopt for a mark that leaves it
/// whole.
std::optional<int64_t> marked_dimension(const std::string& name, const Sharding& sharding,
                                        const comm::Mesh& mesh, util::Named<Strategy> strategy) {
  const PartitionSpec spec = without_model(sharding.spec);
  const auto cut = spec.cut_dimensions();
  if (cut.empty()) return std::nullopt;
  const PartitionSpec::Axes axes = shard_axes(strategy, mesh.shape());
  if (cut.size() > 1 || spec.axes(cut.front()) != axes) {
    fail(ErrorKind::kUsage, "spmd_fully_shard(): expected parameters that are cut on one dimension, over ",
         to_string(PartitionSpec{axes}), " with fsdp.strategy = ", strategy, "; found ", name, " marked ",
         to_string(sharding.spec), "; change the mark or the strategy");
  }
  return static_cast<int64_t>(cut.front());
}

/// Marks decide, then the options, in which the calls that sharded inner modules have decided before.
DimensionPolicy policy_of_marks(const InnerModules& inner, const comm::Mesh& mesh,
                                const ShardOptions& options) {
  const ModelTree& tree = inner.tree();
  auto decided = std::make_shared<std::map<std::string, std::optional<int64_t>>>();
  for (size_t i = 0; i < tree.tensors.size(); ++i) {
    const std::string& name = tree.outline.parameters[i].names.front();
    const auto sharding = sharding_of(tree.tensors[i]);
    if (!sharding) continue;
    const auto before = inner.cuts().find(tree.tensors[i].unsafeGetTensorImpl());
    const auto strategy = before == inner.cuts().end() ? options.strategy : before->second.strategy;
    decided->emplace(name, marked_dimension(name, *sharding, mesh, strategy));
  }
  DimensionPolicy others = options.dimension_policy
                               ? options.dimension_policy
                               : shard_dimension_policy(options.shard_dimension, options.shard_1d_parameters);
  return [decided, others](const std::string& name, const std::vector<int64_t>& shape) {
    const auto found = decided->find(name);
    return found == decided->end() ? others(name, shape) : found->second;
  };
}

/// The modules that the policy wants; it notes in `policy_found_one` whether there is one.
WrapPolicy wrap_policy_of(const SpmdOptions& options, const std::shared_ptr<bool>& policy_found_one) {
  return [policy = options.auto_wrap_policy, excluded = options.shard.exclude_stages,
          policy_found_one](const StageInfo& info) {
    const bool is_excluded =
        std::find(excluded.begin(), excluded.end(), info.module.type_name()) != excluded.end();
    if (!policy || is_excluded || !policy(info)) return false;
    *policy_found_one = true;
    return true;
  };
}

const ShardingFront& spmd_front() {
  static const ShardingFront kFront{
      .name = "spmd_fully_shard()", .defaults = SpmdOptions().shard, .units_keep_all_options = false};
  return kFront;
}

/// Does what marks with the axis model ask for. Throws Error(kUsage) where that is impossible.
nn::ParallelPlan parallel_plan_of(torch::nn::Module& module, const comm::Mesh& mesh,
                                  const InnerModules& inner, const ShardOptions& options) {
  if (mesh.shape().context > 1) {
    fail(ErrorKind::kUsage, "spmd_fully_shard(): expected a mesh whose axis context has 1 rank; found ",
         to_string(mesh.shape()), ", and marks say nothing of parts of sequences; use fully_shard()");
  }
  nn::ParallelPlan plan = plan_of_marks(module, mesh);
  if (plan.empty()) {
    require_parts(mesh, options);
    return plan;
  }
  if (!options.parts.empty()) {
    fail(ErrorKind::kUsage,
         "spmd_fully_shard(): expected ShardOptions::parts or parameters marked with the axis ",
         "model; found both; leave the axis out of the marks");
  }
  if (!inner.empty()) {
    fail(ErrorKind::kUsage,
         "spmd_fully_shard(): expected one call for a module with parameters marked with the axis ",
         "model; found ", inner.first(),
         " sharded before; make it a unit with auto_wrap_policy or wrap() instead");
  }
  return plan;
}

void warn_of_idle_policy(const ModelTree& tree) {
  std::set<std::string> types;
  for (size_t node = 1; node < tree.modules.size(); ++node) {
    if (tree.modules[node] != nullptr) types.insert(tree.modules[node]->type_name());
  }
  const std::vector<std::string> names(types.begin(), types.end());
  util::log_warning(concat(
      "spmd_fully_shard(): auto_wrap_policy: expected a module that it wraps; found none among the modules whose "
      "calls hooks can see (",
      names.empty() ? std::string("there is none") : util::join(names, ", "),
      "), so that all parameters outside of modules sharded before are one unit and are gathered at once; name "
      "one of these, or declare a module as fsdp::Hooked"));
}

}  // namespace

std::shared_ptr<Engine> spmd_fully_shard(torch::nn::Module& module, const comm::Mesh& mesh,
                                         ShardOutput shard_output, SpmdOptions options,
                                         std::shared_ptr<comm::Trace> trace) {
  return detail::spmd_fully_shard(module, mesh, std::move(shard_output), std::move(options), std::move(trace),
                                  /*first_output_is_chosen=*/false);
}

std::shared_ptr<Engine> detail::spmd_fully_shard(torch::nn::Module& module, const comm::Mesh& mesh,
                                                 ShardOutput shard_output, SpmdOptions options,
                                                 std::shared_ptr<comm::Trace> trace,
                                                 bool first_output_is_chosen) {
  InnerModules inner(module, spmd_front());
  ShardOptions& shard = options.shard;
  const nn::ParallelPlan plan = parallel_plan_of(module, mesh, inner, shard);
  inner.add_to(shard, mesh);
  if (shard.layout == Layout::kPerParameter) shard.dimension_policy = policy_of_marks(inner, mesh, shard);
  const auto policy_found_one = std::make_shared<bool>(false);
  shard.wrap_policy = wrap_policy_of(options, policy_found_one);
  if (!inner.empty()) shard.exclude_stages.clear();  // inner units may be of such a type; the policy has them
  // Errors come before the inner engines end.
  ShardOptions with_noted = WrappedModules::added_to(shard);
  require_no_option_conflicts(with_noted);
  plan_units(module, with_noted);
  if (options.auto_wrap_policy && !*policy_found_one && mesh.world()->rank() == 0)
    warn_of_idle_policy(inner.tree());

  if (!plan.empty()) with_noted.parts = share_layers(module, plan, mesh);
  nn::Hookable* root = inner.tree().modules.front();
  const auto hook = std::make_shared<SpmdHook>(mesh, std::move(shard_output), first_output_is_chosen);
  // Attached before the engine's hooks, so that it runs around them.
  root->attach(hook);
  try {
    auto engine =
        inner.shard(with_noted, mesh, std::move(trace), options.materialize, [weak = std::weak_ptr(hook)] {
          if (const auto inner_hook = weak.lock()) inner_hook->set_inner();
        });
    WrappedModules::clear();
    return engine;
  } catch (...) {
    root->replace(*hook, nullptr);
    throw;
  }
}

}  // namespace fsdp::shard
