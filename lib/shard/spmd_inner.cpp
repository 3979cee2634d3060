#include "shard/spmd_inner.h"

#include <algorithm>
#include <utility>

#include "shard/spmd_fully_shard.h"
#include "util/error.h"
#include "util/text.h"

namespace fsdp::shard {
namespace {

using util::concat;
using util::ErrorKind;
using util::fail;

std::shared_ptr<Engine> in_use(const SpmdRoots::Root& root) {
  auto engine = root.engine.lock();
  return engine && !engine->units().empty() ? engine : nullptr;
}

}  // namespace

SpmdRoots& SpmdRoots::instance() {
  static SpmdRoots roots;
  return roots;
}

void SpmdRoots::add(const nn::Hookable* module, Root root) {
  std::lock_guard lock(mutex_);
  std::erase_if(roots_, [](const auto& entry) { return entry.second.engine.expired(); });
  roots_[module] = std::move(root);
}

void SpmdRoots::remove(const nn::Hookable* module) {
  std::lock_guard lock(mutex_);
  roots_.erase(module);
}

std::shared_ptr<Engine> SpmdRoots::engine_of(const nn::Hookable* module) {
  std::lock_guard lock(mutex_);
  const auto found = roots_.find(module);
  return found == roots_.end() ? nullptr : in_use(found->second);
}

std::shared_ptr<SpmdHook> SpmdRoots::hook_of(const nn::Hookable* module) {
  std::lock_guard lock(mutex_);
  return roots_.at(module).hook.lock();
}

bool SpmdRoots::another_has(const std::set<const nn::Hookable*>& modules, const void* parameter) {
  std::lock_guard lock(mutex_);
  return std::any_of(roots_.begin(), roots_.end(), [&](const auto& entry) {
    return !modules.contains(entry.first) && entry.second.parameters.contains(parameter) &&
           in_use(entry.second);
  });
}

std::vector<InnerModule> find_inner_modules(const ModelTree& tree) {
  std::vector<InnerModule> found;
  std::set<const nn::Hookable*> seen;
  for (size_t node = 1; node < tree.modules.size(); ++node) {
    nn::Hookable* module = tree.modules[node];
    if (module == nullptr || !seen.insert(module).second) continue;
    if (auto engine = SpmdRoots::instance().engine_of(module)) {
      found.push_back({tree.outline.nodes[node].path, module, std::move(engine)});
    }
  }
  seen.insert(tree.modules.front());
  for (size_t i = 0; i < tree.tensors.size(); ++i) {
    if (!SpmdRoots::instance().another_has(seen, tree.tensors[i].unsafeGetTensorImpl())) continue;
    fail(ErrorKind::kUsage,
         "spmd_fully_shard(): expected every sharded module to be inside the outer one; found ",
         tree.outline.parameters[i].names.front(),
         " sharded with a wrapper that is not; register the wrapper in place of the module that it wraps");
  }
  return found;
}

void require_options_of(const InnerModule& inner, const ShardOptions& outer) {
  using Text = std::string (*)(const ShardOptions&);
  const auto text = [](bool value) { return std::string(value ? "true" : "false"); };
  static const std::map<const char*, Text> kOptions = {
      {"fsdp.layout", [](const ShardOptions& o) { return concat(o.layout); }},
      {"fsdp.hybrid_optimizer", [](const ShardOptions& o) { return concat(o.hybrid_optimizer); }},
      {"fsdp.forward_prefetch", [](const ShardOptions& o) { return concat(o.forward_prefetch); }},
      {"fsdp.backward_prefetch", [](const ShardOptions& o) { return concat(o.backward_prefetch); }},
      {"fsdp.gradient_predivide_factor",
       [](const ShardOptions& o) { return concat(o.gradient_predivide_factor); }},
      {"mixed_precision.buffer_dtype",
       [](const ShardOptions& o) { return concat(o.mixed_precision.buffer_dtype); }}};
  static const std::map<const char*, bool (*)(const ShardOptions&)> kSwitches = {
      {"fsdp.limit_all_gathers", [](const ShardOptions& o) { return o.limit_all_gathers; }},
      {"fsdp.reduce_scatter_group", [](const ShardOptions& o) { return o.reduce_scatter_group; }},
      {"fsdp.reshard_last_after_forward",
       [](const ShardOptions& o) { return o.reshard_last_after_forward; }}};
  const ShardOptions& own = inner.engine->options();
  const ShardOptions defaults = SpmdOptions().shard;
  const auto require = [&](const char* option, const std::string& mine, const std::string& by_default,
                           const std::string& found) {
    if (mine == by_default || mine == found) return;
    fail(ErrorKind::kUsage, "spmd_fully_shard(): expected ", option, " = ", mine, ", with which ", inner.path,
         " was sharded and which all units of an engine share; found ", found,
         "; set it for the outer module too, or for neither");
  };
  for (const auto& [option, value] : kOptions) require(option, value(own), value(defaults), value(outer));
  for (const auto& [option, value] : kSwitches) {
    require(option, text(value(own)), text(value(defaults)), text(value(outer)));
  }
}

namespace {

/// What an engine's options say of its units and the defaults do not.
UnitOverrides set_options(const ShardOptions& options) {
  const ShardOptions defaults = SpmdOptions().shard;
  UnitOverrides set;
  const auto take = [](auto& to, const auto& from, const auto& by_default) {
    if (from != by_default) to = from;
  };
  const MixedPrecisionOptions &mixed = options.mixed_precision, &plain = defaults.mixed_precision;
  take(set.strategy, options.strategy, defaults.strategy);
  take(set.param_storage, options.param_storage, defaults.param_storage);
  take(set.param_dtype, mixed.param_dtype, plain.param_dtype);
  take(set.reduce_dtype, mixed.reduce_dtype, plain.reduce_dtype);
  take(set.cast_forward_inputs, mixed.cast_forward_inputs, plain.cast_forward_inputs);
  take(set.keep_low_precision_grads, mixed.keep_low_precision_grads, plain.keep_low_precision_grads);
  take(set.cpu_offload, options.cpu_offload, defaults.cpu_offload);
  take(set.move_grads_to_cpu, options.move_grads_to_cpu, defaults.move_grads_to_cpu);
  return set;
}

UnitOverrides wrapped_options(const ShardOptions& options, const nn::Hookable* module) {
  const auto found = std::find_if(options.wrapped.begin(), options.wrapped.end(),
                                  [module](const WrappedModule& each) { return each.module == module; });
  return found == options.wrapped.end() ? UnitOverrides() : found->options;
}

}  // namespace

void take_options(const InnerModule& inner, ShardOptions& outer, InnerCuts& cuts) {
  const Engine& engine = *inner.engine;
  const ShardOptions& own = engine.options();
  const UnitOverrides of_all = set_options(own);
  for (size_t i = 0; i < engine.units().size(); ++i) {
    const Unit& unit = *engine.units()[i];
    const nn::Hookable* module =
        engine.modules()[i];  // none of parameters that were taken out of their units
    const bool is_whole =
        module == nullptr && shards_nothing(unit.options().strategy) && !shards_nothing(own.strategy);
    const bool is_float32 = module == nullptr && unit.name().ends_with(".float32");  // by plan_units()
    UnitOverrides options = merged(wrapped_options(own, module), of_all);
    for (const NamedParameter& parameter : unit.storage().parameters()) {
      const std::string name = nn::name_inside(inner.path, parameter.name);
      cuts[parameter.tensor.unsafeGetTensorImpl()] = {
          is_whole ? std::nullopt : std::optional(parameter.shard_dimension),
          options.strategy.value_or(outer.strategy)};
      if (is_whole && outer.layout == Layout::kFlat && !shards_nothing(outer.strategy)) {
        outer.replicated_parameters.push_back(name);
      }
      if (is_float32) outer.mixed_precision.keep_float32.push_back(name);
    }
    if (module == nullptr || unit.storage().parameters().empty()) continue;
    if (!own.reshard_after_forward || util::matches_any(unit.name(), own.keep_after_forward)) {
      options.reshard_after_forward = false;
    }
    outer.wrapped.push_back({module, options});
  }
}

}  // namespace fsdp::shard
