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
      {"fsdp.strategy", [](const ShardOptions& o) { return concat(o.strategy); }},
      {"fsdp.layout", [](const ShardOptions& o) { return concat(o.layout); }},
      {"fsdp.forward_prefetch", [](const ShardOptions& o) { return concat(o.forward_prefetch); }},
      {"fsdp.backward_prefetch", [](const ShardOptions& o) { return concat(o.backward_prefetch); }},
      {"fsdp.gradient_predivide_factor",
       [](const ShardOptions& o) { return concat(o.gradient_predivide_factor); }},
      {"fsdp.param_storage", [](const ShardOptions& o) { return concat(o.param_storage); }},
      {"mixed_precision.param_dtype",
       [](const ShardOptions& o) { return concat(o.mixed_precision.param_dtype); }},
      {"mixed_precision.reduce_dtype",
       [](const ShardOptions& o) { return concat(o.mixed_precision.reduce_dtype); }},
      {"mixed_precision.buffer_dtype",
       [](const ShardOptions& o) { return concat(o.mixed_precision.buffer_dtype); }},
      {"mixed_precision.keep_float32",
       [](const ShardOptions& o) { return "[" + util::join(o.mixed_precision.keep_float32, ", ") + "]"; }}};
  static const std::map<const char*, bool (*)(const ShardOptions&)> kSwitches = {
      {"fsdp.limit_all_gathers", [](const ShardOptions& o) { return o.limit_all_gathers; }},
      {"fsdp.reshard_last_after_forward", [](const ShardOptions& o) { return o.reshard_last_after_forward; }},
      {"fsdp.cpu_offload", [](const ShardOptions& o) { return o.cpu_offload; }},
      {"fsdp.move_grads_to_cpu", [](const ShardOptions& o) { return o.move_grads_to_cpu; }},
      {"mixed_precision.cast_forward_inputs",
       [](const ShardOptions& o) { return o.mixed_precision.cast_forward_inputs; }},
      {"mixed_precision.keep_low_precision_grads",
       [](const ShardOptions& o) { return o.mixed_precision.keep_low_precision_grads; }}};
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

bool is_replicated(const Engine& engine, size_t unit) {
  return engine.modules()[unit] == nullptr && engine.units()[unit]->name().starts_with("root.replicated");
}

void take_options(const InnerModule& inner, ShardOptions& outer, Dimensions& dimensions) {
  const Engine& engine = *inner.engine;
  const ShardOptions& own = engine.options();
  const bool frees_units = reshards(outer.strategy) && outer.reshard_after_forward;
  for (size_t i = 0; i < engine.units().size(); ++i) {
    const Unit& unit = *engine.units()[i];
    const bool is_whole = is_replicated(engine, i);
    for (const NamedParameter& parameter : unit.storage().parameters()) {
      dimensions[parameter.tensor.unsafeGetTensorImpl()] =
          is_whole ? std::nullopt : std::optional(parameter.shard_dimension);
      if (is_whole && outer.layout == Layout::kFlat && !shards_nothing(outer.strategy)) {
        outer.replicated_parameters.push_back(nn::name_inside(inner.path, parameter.name));
      }
    }
    const bool stays = !own.reshard_after_forward || util::matches_any(unit.name(), own.keep_after_forward);
    const bool is_unit = engine.modules()[i] != nullptr && !unit.storage().parameters().empty();
    if (stays && is_unit && frees_units) {
      outer.keep_after_forward.push_back(i == 0 ? inner.path : nn::name_inside(inner.path, unit.name()));
    }
  }
}

}  // namespace fsdp::shard
