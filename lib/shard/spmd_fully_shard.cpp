#include "shard/spmd_fully_shard.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <set>

#include "shard/fully_shard.h"
#include "shard/group_sizes.h"
#include "util/error.h"
#include "util/text.h"

namespace fsdp::shard {
namespace {

using util::ErrorKind;
using util::fail;

/// The outermost hook of the module: cuts its input and marks its output.
class SpmdHook final : public nn::StageHook {
 public:
  SpmdHook(const comm::Mesh& mesh, ShardOutput shard_output)
      : mesh_(mesh), shard_output_(std::move(shard_output)) {}

  at::Tensor around(nn::Stage&, const at::Tensor& input, const Next& next) override {
    at::Tensor output = next(sharding_of(input) ? input : mark_sharding(input, mesh_, batch_spec()));
    if (shard_output_) {
      shard_output_(output, mesh_);
    } else {
      mark_local_shard(output, mesh_, batch_spec());
    }
    return output;
  }

 private:
  comm::Mesh mesh_;
  ShardOutput shard_output_;
};

/// The root stages of live engines made by spmd_fully_shard(). Thread-safe.
class Roots {
 public:
  static Roots& instance() {
    static Roots roots;
    return roots;
  }
  void add(const nn::Stage* stage, const std::shared_ptr<Engine>& engine) {
    std::lock_guard lock(mutex_);
    std::erase_if(roots_, [](const auto& entry) { return entry.second.expired(); });
    roots_[stage] = engine;
  }
  std::shared_ptr<Engine> take(const nn::Stage* stage) {
    std::lock_guard lock(mutex_);
    auto found = roots_.find(stage);
    if (found == roots_.end()) return nullptr;
    auto engine = found->second.lock();
    roots_.erase(found);
    return engine;
  }
  bool has(const nn::Stage* stage) {
    std::lock_guard lock(mutex_);
    auto found = roots_.find(stage);
    return found != roots_.end() && !found->second.expired();
  }

 private:
  std::mutex mutex_;
  std::map<const nn::Stage*, std::weak_ptr<Engine>> roots_;
};

/// Ends the engines of stages inside the module; returns these stages.
std::set<const nn::Hookable*> take_inner_roots(nn::Stage& module) {
  std::set<const nn::Hookable*> stages;
  for (const auto& inner : module.modules(/*include_self=*/false)) {
    auto* stage = dynamic_cast<nn::Stage*>(inner.get());
    auto engine = stage == nullptr ? nullptr : Roots::instance().take(stage);
    if (!engine) continue;
    engine->unshard();
    stages.insert(stage);
  }
  return stages;
}

/// The dimension that a parameter's mark cuts; nullopt for a mark that leaves it whole.
std::optional<int64_t> marked_dimension(const std::string& name, const Sharding& sharding,
                                        const comm::Mesh& mesh, util::Named<Strategy> strategy) {
  const auto cut = sharding.spec.cut_dimensions();
  if (sharding.mesh != mesh.shape()) {
    fail(ErrorKind::kUsage, "spmd_fully_shard(): expected parameters marked on the mesh ",
         to_string(mesh.shape()), "; found ", name, " marked on ", to_string(sharding.mesh),
         "; mark it on the mesh that the module is sharded over");
  }
  if (cut.empty()) return std::nullopt;
  const PartitionSpec::Axes axes = shard_axes(strategy);
  if (cut.size() > 1 || sharding.spec.axes(cut.front()) != axes) {
    fail(ErrorKind::kUsage, "spmd_fully_shard(): expected parameters that are cut on one dimension, over ",
         to_string(PartitionSpec{axes}), " with fsdp.strategy = ", strategy, "; found ", name, " marked ",
         to_string(sharding.spec), "; change the mark or the strategy");
  }
  return static_cast<int64_t>(cut.front());
}

DimensionPolicy policy_of_marks(nn::Stage& module, const comm::Mesh& mesh, const ShardOptions& options) {
  auto marked = std::make_shared<std::map<std::string, std::optional<int64_t>>>();
  for (const auto& parameter : module.named_parameters()) {
    auto sharding = sharding_of(parameter.value());
    if (!sharding) continue;
    marked->emplace(parameter.key(), marked_dimension(parameter.key(), *sharding, mesh, options.strategy));
  }
  DimensionPolicy others = options.dimension_policy
                               ? options.dimension_policy
                               : shard_dimension_policy(options.shard_dimension, options.shard_1d_parameters);
  return [marked, others](const std::string& name, const std::vector<int64_t>& shape) {
    auto found = marked->find(name);
    return found == marked->end() ? others(name, shape) : found->second;
  };
}

}  // namespace

std::shared_ptr<Engine> spmd_fully_shard(nn::Stage& module, const comm::Mesh& mesh, ShardOutput shard_output,
                                         SpmdOptions options, std::shared_ptr<comm::Trace> trace) {
  if (Roots::instance().has(&module)) {
    fail(ErrorKind::kUsage, "spmd_fully_shard(): expected a module that is not sharded; found one of type ",
         module.type_name(), " that is; shard each module once, inner ones before those around them");
  }
  std::set<const nn::Hookable*> inner = take_inner_roots(module);
  ShardOptions& shard = options.shard;
  if (shard.layout == Layout::kPerParameter) shard.dimension_policy = policy_of_marks(module, mesh, shard);
  shard.wrap_policy = [inner, policy = options.auto_wrap_policy](const StageInfo& info) {
    return inner.contains(&info.module) || (policy && policy(info));
  };
  if (!options.auto_wrap_policy) shard.exclude_stages.clear();
  // Attached before the engine's hooks, so that it runs around them.
  module.attach(std::make_shared<SpmdHook>(mesh, std::move(shard_output)));
  try {
    auto engine = fully_shard(module, shard, mesh, std::move(trace));
    Roots::instance().add(&module, engine);
    return engine;
  } catch (...) {
    module.detach_hooks();
    throw;
  }
}

}  // namespace fsdp::shard
