#include "shard/spmd_fully_shard.h"

#include <algorithm>
#include <map>
#include <set>

#include "shard/fully_shard.h"
#include "shard/group_sizes.h"
#include "shard/model_marks.h"
#include "shard/option_conflicts.h"
#include "shard/spmd_hook.h"
#include "shard/spmd_inner.h"
#include "shard/wrap.h"
#include "util/error.h"
#include "util/log.h"
#include "util/text.h"

namespace fsdp::shard {
namespace {

using util::concat;
using util::ErrorKind;
using util::fail;

/// The dimension that a parameter's mark cuts over the axes of shards; nullopt for a mark that leaves it whole.
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

/// Marks decide, then the calls that sharded inner modules, then the options.
DimensionPolicy dimension_policy_of(const ModelTree& tree, const comm::Mesh& mesh,
                                    const ShardOptions& options, const InnerCuts& inner) {
  auto decided = std::make_shared<std::map<std::string, std::optional<int64_t>>>();
  for (size_t i = 0; i < tree.tensors.size(); ++i) {
    const std::string& name = tree.outline.parameters[i].names.front();
    const auto before = inner.find(tree.tensors[i].unsafeGetTensorImpl());
    if (const auto sharding = sharding_of(tree.tensors[i])) {
      const auto strategy = before == inner.end() ? options.strategy : before->second.strategy;
      decided->emplace(name, marked_dimension(name, *sharding, mesh, strategy));
    } else if (before != inner.end()) {
      decided->emplace(name, before->second.dimension);
    }
  }
  DimensionPolicy others = options.dimension_policy
                               ? options.dimension_policy
                               : shard_dimension_policy(options.shard_dimension, options.shard_1d_parameters);
  return [decided, others](const std::string& name, const std::vector<int64_t>& shape) {
    const auto found = decided->find(name);
    return found == decided->end() ? others(name, shape) : found->second;
  };
}

/// The modules outside of inner ones that the policy wants; it notes in `policy_found_one` whether there is
/// one.
WrapPolicy wrap_policy_of(const std::vector<InnerModule>& inner, const SpmdOptions& options,
                          const std::shared_ptr<bool>& policy_found_one) {
  std::vector<std::string> paths;
  for (const InnerModule& each : inner) paths.push_back(each.path);
  return [paths, policy = options.auto_wrap_policy, excluded = options.shard.exclude_stages,
          policy_found_one](const StageInfo& info) {
    const bool is_excluded =
        std::find(excluded.begin(), excluded.end(), info.module.type_name()) != excluded.end();
    const bool is_inner = std::any_of(paths.begin(), paths.end(), [&](const std::string& path) {
      return info.path == path || info.path.starts_with(path + ".");
    });
    if (!policy || is_excluded || is_inner || !policy(info)) return false;
    *policy_found_one = true;
    return true;
  };
}

/// What marks with the axis model ask for. Throws Error(kUsage) where that cannot be done.
nn::ParallelPlan parallel_plan_of(torch::nn::Module& module, const comm::Mesh& mesh,
                                  const std::vector<InnerModule>& inner, const ShardOptions& options) {
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
         "model; found ", inner.front().path,
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
  const ModelTree tree = make_model_tree(module);
  nn::Hookable* root = tree.modules.front();
  if (root != nullptr && SpmdRoots::instance().engine_of(root)) {
    fail(ErrorKind::kUsage, "spmd_fully_shard(): expected a module that is not sharded; found one of type ",
         root->type_name(), " that is; shard each module once, inner ones before those around them");
  }
  const std::vector<InnerModule> inner = find_inner_modules(tree);
  ShardOptions& shard = options.shard;
  const nn::ParallelPlan plan = parallel_plan_of(module, mesh, inner, shard);
  InnerCuts cuts;
  for (const InnerModule& each : inner) {
    require_options_of(each, shard);
    take_options(each, shard, cuts);
  }
  if (shard.layout == Layout::kPerParameter) {
    shard.dimension_policy = dimension_policy_of(tree, mesh, shard, cuts);
  }
  const auto policy_found_one = std::make_shared<bool>(false);
  shard.wrap_policy = wrap_policy_of(inner, options, policy_found_one);
  if (!inner.empty()) shard.exclude_stages.clear();  // inner units may be of such a type; the policy has them
  // Errors come before the inner engines end.
  const ShardOptions with_noted = WrappedModules::added_to(shard);
  require_no_option_conflicts(with_noted);
  plan_units(module, with_noted);
  if (options.auto_wrap_policy && !*policy_found_one && mesh.world()->rank() == 0) warn_of_idle_policy(tree);

  if (!plan.empty()) shard.parts = share_layers(module, plan, mesh);
  HookPlaces places;
  for (const InnerModule& each : inner) places.merge(each.engine->hand_over());
  const auto hook = std::make_shared<SpmdHook>(mesh, std::move(shard_output), first_output_is_chosen);
  // Attached before the engine's hooks, so that it runs around them.
  root->attach(hook);
  std::shared_ptr<Engine> engine;
  try {
    engine = fully_shard(module, shard, mesh, std::move(trace), options.materialize, places);
  } catch (...) {
    root->replace(*hook, nullptr);
    for (const auto& [place, unit_hook] : places) place->replace(*unit_hook, nullptr);
    throw;
  }
  for (const InnerModule& each : inner) {
    if (const auto inner_hook = SpmdRoots::instance().hook_of(each.module)) inner_hook->set_inner();
    SpmdRoots::instance().remove(each.module);
  }
  SpmdRoots::Root entry{engine, hook, {}};
  for (const at::Tensor& parameter : tree.tensors) entry.parameters.insert(parameter.unsafeGetTensorImpl());
  SpmdRoots::instance().add(root, std::move(entry));
  return engine;
}

}  // namespace fsdp::shard
