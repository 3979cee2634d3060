#include "shard/engine/inner_modules.h"

#include <algorithm>
#include <utility>

#include "base/util/error.h"
#include "base/util/text.h"
#include "model/nn/buffers.h"
#include "shard/engine/buffer_types.h"
#include "shard/engine/inner_shards.h"

namespace fsdp::shard {
namespace {

bool is_in_use(const std::shared_ptr<Engine>& engine) { return engine && !engine->units().empty(); }

/// Returns the options of a call that its units have.
UnitOverrides all_options(const ShardOptions& options) {
  const MixedPrecisionOptions& mixed = options.mixed_precision;
  return {.strategy = options.strategy,
          .param_storage = options.param_storage,
          .param_dtype = mixed.param_dtype,
          .reduce_dtype = mixed.reduce_dtype,
          .cast_forward_inputs = mixed.cast_forward_inputs,
          .keep_low_precision_grads = mixed.keep_low_precision_grads,
          .cpu_offload = options.cpu_offload,
          .move_grads_to_cpu = options.move_grads_to_cpu};
}

/// Returns the options of all_options() that are not the defaults.
UnitOverrides set_options(const ShardOptions& options, const ShardOptions& defaults) {
  UnitOverrides set = all_options(options);
  const UnitOverrides by_default = all_options(defaults);
  const auto leave_out_default = [&](auto member) {
    if (set.*member == by_default.*member) (set.*member).reset();
  };
  leave_out_default(&UnitOverrides::strategy);
  leave_out_default(&UnitOverrides::param_storage);
  leave_out_default(&UnitOverrides::param_dtype);
  leave_out_default(&UnitOverrides::reduce_dtype);
  leave_out_default(&UnitOverrides::cast_forward_inputs);
  leave_out_default(&UnitOverrides::keep_low_precision_grads);
  leave_out_default(&UnitOverrides::cpu_offload);
  leave_out_default(&UnitOverrides::move_grads_to_cpu);
  return set;
}

UnitOverrides wrapped_options(const ShardOptions& options, const nn::Hookable* module) {
  const auto found = std::find_if(options.wrapped.begin(), options.wrapped.end(),
                                  [module](const WrappedModule& each) { return each.module == module; });
  return found == options.wrapped.end() ? UnitOverrides() : found->options;
}

/// Returns a policy in which the inner calls decide first, and the options of the outer call for other
/// parameters.
DimensionPolicy policy_of_cuts(const ModelTree& tree, const std::map<const void*, InnerCut>& cuts,
                               const ShardOptions& options) {
  std::map<std::string, std::optional<int64_t>> decided;
  for (size_t i = 0; i < tree.tensors.size(); ++i) {
    const auto cut = cuts.find(tree.tensors[i].unsafeGetTensorImpl());
    if (cut != cuts.end()) decided.emplace(tree.outline.parameters[i].names.front(), cut->second.dimension);
  }
  DimensionPolicy others = options.dimension_policy
                               ? options.dimension_policy
                               : shard_dimension_policy(options.shard_dimension, options.shard_1d_parameters);
  return [decided, others](const std::string& name, const std::vector<int64_t>& shape) {
    const auto found = decided.find(name);
    return found == decided.end() ? others(name, shape) : found->second;
  };
}

void require_real_buffers(const torch::nn::Module& root) {
  for (const auto& buffer : root.named_buffers()) {
    if (!buffer.value().is_meta()) continue;
    fail(ErrorKind::kUsage, "buffer ", buffer.key(),
         ": expected values; found a tensor on the meta device, which has none; make buffers on a real "
         "device, on which only parameters may be missing");
  }
}

/// Returns the buffers that belong to the model's state, with the source's values. Collective if the source
/// is.
std::vector<NamedTensor> take_buffers(const torch::nn::Module& root, ParameterSource* source) {
  at::NoGradGuard no_grad;
  std::vector<NamedTensor> buffers;
  for (auto& [name, tensor] : nn::persistent_buffers(root)) {
    if (!tensor.is_contiguous()) tensor.set_data(tensor.contiguous());  // state dicts have views of it
    if (source != nullptr) source->read_buffer({name, tensor});
    buffers.push_back({name, tensor});
  }
  return buffers;
}

}  // namespace

ShardedModules& ShardedModules::instance() {
  static ShardedModules modules;
  return modules;
}

void ShardedModules::add(const nn::Hookable* module, ShardedModule entry) {
  std::lock_guard lock(mutex_);
  std::erase_if(entries_, [](const auto& each) { return each.second.engine.expired(); });
  entries_[module] = std::move(entry);
}

void ShardedModules::remove(const nn::Hookable* module) {
  std::lock_guard lock(mutex_);
  entries_.erase(module);
}

std::optional<ShardedModules::ShardedModule> ShardedModules::find(const nn::Hookable* module,
                                                                  const std::vector<at::Tensor>& parameters) {
  std::lock_guard lock(mutex_);
  const auto found = entries_.find(module);
  if (found == entries_.end() || !is_in_use(found->second.engine.lock())) return std::nullopt;
  const bool is_the_module = std::ranges::any_of(parameters, [&](const at::Tensor& parameter) {
    return found->second.parameters.contains(parameter.unsafeGetTensorImpl());
  });
  return is_the_module ? std::optional(found->second) : std::nullopt;
}

bool ShardedModules::others_have(const std::set<const nn::Hookable*>& modules, const void* parameter) {
  std::lock_guard lock(mutex_);
  return std::any_of(entries_.begin(), entries_.end(), [&](const auto& each) {
    return !modules.contains(each.first) && each.second.parameters.contains(parameter) &&
           is_in_use(each.second.engine.lock());
  });
}

InnerModules::InnerModules(torch::nn::Module& root, const ShardingFront& front)
    : root_(root), front_(front), tree_(make_model_tree(root)) {
  const nn::Hookable* outermost = tree_.modules.front();
  if (outermost != nullptr && ShardedModules::instance().find(outermost, tree_.tensors)) {
    fail(ErrorKind::kUsage, front.name, ": expected a module that is not sharded; found one of type ",
         outermost->type_name(), " that is; shard each module once, inner ones before those around them");
  }
  std::set<const nn::Hookable*> seen;
  for (size_t node = 1; node < tree_.modules.size(); ++node) {
    nn::Hookable* module = tree_.modules[node];
    if (module == nullptr || !seen.insert(module).second) continue;
    auto entry = ShardedModules::instance().find(module, tree_.tensors);
    if (!entry) continue;
    const std::string& path = tree_.outline.nodes[node].path;
    if (entry->front != &front) {
      fail(ErrorKind::kUsage, front.name,
           ": expected inner modules that the same function has sharded; found ", path, " sharded by ",
           entry->front->name, "; use one of the two for all");
    }
    auto engine = entry->engine.lock();
    modules_.push_back({path, module, std::move(*entry), std::move(engine)});
  }
  require_parameters_inside();
}

void InnerModules::require_parameters_inside() const {
  std::set<const nn::Hookable*> inside(tree_.modules.begin(), tree_.modules.end());
  for (size_t i = 0; i < tree_.tensors.size(); ++i) {
    if (!ShardedModules::instance().others_have(inside, tree_.tensors[i].unsafeGetTensorImpl())) continue;
    fail(
        ErrorKind::kUsage, front_.name, ": expected every sharded module to be inside the outer one; found ",
        tree_.outline.parameters[i].names.front(),
        " sharded with a wrapper that is not; register the wrapper in place of the module that it wraps, and shard inner "
        "modules before those around them");
  }
}

void InnerModules::require_options_of(const Module& inner, const ShardOptions& outer,
                                      const comm::Mesh& mesh) const {
  if (inner.engine->mesh() != mesh.shape()) {
    fail(ErrorKind::kUsage, front_.name, ": expected the mesh with which ", inner.path, " was sharded, ",
         to_string(inner.engine->mesh()), "; found ", to_string(mesh.shape()),
         "; use one mesh for all, and strategies to choose the ranks that share a unit");
  }
  using Text = std::string (*)(const ShardOptions&);
  const auto text = [](bool value) { return std::string(value ? "true" : "false"); };
  static const std::map<const char*, Text> kOptions = {
      {"fsdp.layout", [](const ShardOptions& o) { return concat(o.layout); }},
      {"fsdp.hybrid_optimizer", [](const ShardOptions& o) { return concat(o.hybrid_optimizer); }},
      {"fsdp.forward_prefetch", [](const ShardOptions& o) { return concat(o.forward_prefetch); }},
      {"fsdp.backward_prefetch", [](const ShardOptions& o) { return concat(o.backward_prefetch); }},
      {"fsdp.gradient_predivide_factor",
       [](const ShardOptions& o) { return concat(o.gradient_predivide_factor); }},
      {"fsdp.gather_dtype", [](const ShardOptions& o) { return concat(o.gather_dtype); }},
      {"fsdp.reduce_dtype", [](const ShardOptions& o) { return concat(o.reduce_dtype); }},
      {"fsdp.quantize_links", [](const ShardOptions& o) { return concat(o.quantize_links); }},
      {"mixed_precision.buffer_dtype",
       [](const ShardOptions& o) { return concat(o.mixed_precision.buffer_dtype); }}};
  static const std::map<const char*, bool (*)(const ShardOptions&)> kSwitches = {
      {"fsdp.limit_all_gathers", [](const ShardOptions& o) { return o.limit_all_gathers; }},
      {"fsdp.reduce_scatter_group", [](const ShardOptions& o) { return o.reduce_scatter_group; }},
      {"fsdp.reshard_last_after_forward", [](const ShardOptions& o) { return o.reshard_last_after_forward; }},
      {"fsdp.error_feedback", [](const ShardOptions& o) { return o.error_feedback; }},
      {"trained_apart", [](const ShardOptions& o) { return o.trained_apart; }},
      {"sums_by_sample", [](const ShardOptions& o) { return o.sums_by_sample; }}};
  const ShardOptions& own = inner.engine->options();
  const ShardOptions& defaults = front_.defaults;
  const auto require = [&](const char* option, const std::string& mine, const std::string& by_default,
                           const std::string& found) {
    if (mine == by_default || mine == found) return;
    fail(ErrorKind::kUsage, front_.name, ": expected ", option, " = ", mine, ", with which ", inner.path,
         " was sharded and which all units of an engine share; found ", found,
         "; set it for the outer module too, or for neither");
  };
  for (const auto& [option, value] : kOptions) require(option, value(own), value(defaults), value(outer));
  for (const auto& [option, value] : kSwitches) {
    require(option, text(value(own)), text(value(defaults)), text(value(outer)));
  }
}

void InnerModules::take_options(const Module& inner, ShardOptions& outer) {
  const Engine& engine = *inner.engine;
  const ShardOptions& own = engine.options();
  const UnitOverrides of_all =
      front_.units_keep_all_options ? all_options(own) : set_options(own, front_.defaults);
  for (size_t i = 0; i < engine.units().size(); ++i) {
    const Unit& unit = *engine.units()[i];
    const nn::Hookable* module =
        engine.modules()[i];  // null for parameters that were taken out of their units
    const bool is_whole =
        module == nullptr && shards_nothing(unit.options().strategy) && !shards_nothing(own.strategy);
    const bool is_float32 = module == nullptr && unit.name().ends_with(".float32");  // by plan_units()
    UnitOverrides options = merged(wrapped_options(own, module), of_all);
    const util::Named<Strategy> strategy = options.strategy.value_or(outer.strategy);
    for (const NamedParameter& parameter : unit.storage().parameters()) {
      const std::string name = nn::name_inside(inner.path, parameter.name);
      cuts_[parameter.tensor.unsafeGetTensorImpl()] = {
          is_whole ? std::nullopt : std::optional(parameter.shard_dimension), strategy};
      if (is_whole && outer.layout == Layout::kFlat && !shards_nothing(outer.strategy)) {
        outer.replicated_parameters.push_back(name);
      }
      if (is_float32) outer.mixed_precision.keep_float32.push_back(name);
    }
    if (module == nullptr || unit.storage().parameters().empty()) continue;
    const std::string name = i == 0 ? inner.path : nn::name_inside(inner.path, unit.name());
    if (!own.reshard_after_forward || util::matches_any(unit.name(), own.keep_after_forward)) {
      options.reshard_after_forward = false;
    } else if (front_.units_keep_all_options && reshards(strategy) &&
               !util::matches_any(name, outer.keep_after_forward)) {
      options.reshard_after_forward = options.reshard_after_forward.value_or(true);
    }
    outer.wrapped.push_back({module, options});
  }
  outer.closed.push_back(inner.module);
}

void InnerModules::add_to(ShardOptions& outer, const comm::Mesh& mesh) {
  if (modules_.empty()) return;
  if (!outer.parts.empty()) {
    fail(ErrorKind::kUsage, front_.name, ": expected one call for a module with ShardOptions::parts; found ",
         first(), " sharded before; make it a unit with a wrap policy or wrap() instead");
  }
  for (const Module& each : modules_) {
    require_options_of(each, outer, mesh);
    take_options(each, outer);
  }
  if (outer.layout == Layout::kPerParameter) outer.dimension_policy = policy_of_cuts(tree_, cuts_, outer);
}

std::shared_ptr<Engine> InnerModules::shard(const ShardOptions& options, const comm::Mesh& mesh,
                                            std::shared_ptr<comm::Trace> trace,
                                            const Materialize& materialize,
                                            std::function<void()> becomes_inner) {
  require_real_buffers(root_);
  const std::vector<UnitPlan> plans = plan_units(root_, options);
  for (const Module& inner : modules_) inner.engine->require_rest(front_.name);  // before any of them ends
  InnerShards shards(materialize);
  HookPlaces places;
  for (const Module& inner : modules_) {
    HandedOver handed = inner.engine->hand_over();
    places.merge(handed.places);
    shards.add(std::move(handed.units), mesh.world()->device());
  }
  std::shared_ptr<Engine> engine;
  try {
    engine = std::make_shared<Engine>(options, mesh, plans, trace, shards.materialize());
    cast_buffers(root_, plans, options.mixed_precision);
    engine->set_buffers(take_buffers(root_, materialize.source));
  } catch (...) {
    for (const auto& [place, hook] : places) place->replace(*hook, nullptr);
    throw;
  }
  // Nothing fails from here on, so hooks may be attached.
  engine->attach_hooks(std::move(places));
  for (const Module& inner : modules_) {
    if (inner.entry.becomes_inner) inner.entry.becomes_inner();
    ShardedModules::instance().remove(inner.module);
  }
  ShardedModules::ShardedModule entry{&front_, engine, {}, std::move(becomes_inner)};
  for (const at::Tensor& parameter : tree_.tensors) entry.parameters.insert(parameter.unsafeGetTensorImpl());
  ShardedModules::instance().add(tree_.modules.front(), std::move(entry));
  return engine;
}

}  // namespace fsdp::shard
