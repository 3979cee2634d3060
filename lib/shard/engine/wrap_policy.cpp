#include "shard/engine/wrap_policy.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <map>

#include "base/util/error.h"
#include "model/nn/layers.h"

namespace fsdp::shard {
namespace {

/// Adds `module` and everything inside it. `index`: the place of each tensor in tree.tensors.
void add_to_tree(ModelTree& tree, std::map<const void*, size_t>& index, torch::nn::Module& module,
                 const std::string& path, size_t parent) {
  nn::ModelOutline& outline = tree.outline;
  const size_t own = outline.nodes.size();
  auto* hookable = dynamic_cast<nn::Hookable*>(&module);
  if (hookable != nullptr) hookable = &hookable->hooked();
  tree.modules.push_back(hookable);
  outline.nodes.push_back({.path = path,
                           .is_stage = hookable != nullptr,
                           .type = hookable != nullptr ? hookable->type_name() : std::string(),
                           .parent = parent});
  for (const auto& parameter : module.named_parameters(/*recurse=*/false)) {
    const at::Tensor& tensor = parameter.value();
    auto [at, is_new] = index.try_emplace(tensor.unsafeGetTensorImpl(), tree.tensors.size());
    if (is_new) {
      tree.tensors.push_back(tensor);
      outline.parameters.push_back(
          {.shape = tensor.sizes().vec(), .requires_grad = tensor.requires_grad(), .names = {}, .nodes = {}});
    }
    nn::OutlineParameter& entry = outline.parameters[at->second];
    if (const auto* linear = dynamic_cast<const nn::Linear*>(&module);
        linear && linear->quantization() && tensor.scalar_type() == at::kByte) {
      entry.quantized_elements = linear->in_features() * linear->out_features();
    }
    entry.names.push_back(nn::name_inside(path, parameter.key()));
    entry.nodes.push_back(own);
  }
  for (const auto& child : module.named_children()) {
    add_to_tree(tree, index, *child.value(), nn::name_inside(path, child.key()), own);
  }
  outline.nodes[own].end = outline.nodes.size();
}

const nn::ParameterPart& part_named(const std::vector<nn::ParameterPart>& parts,
                                    const std::vector<std::string>& names) {
  const auto found = std::ranges::find_if(parts, [&names](const nn::ParameterPart& part) {
    return std::ranges::find(names, part.name) != names.end();
  });
  if (found != parts.end()) return *found;
  fail(ErrorKind::kUsage,
       "ShardOptions::parts: expected what parallelize() returned for the model; found no part of ",
       names.front(), "; pass the result for the same model");
}

/// Returns the node of a module that `option` has given as `what`.
size_t place_of_given(const ModelTree& tree, const nn::Hookable* given, const char* option,
                      const std::string& what) {
  if (given == nullptr) {
    fail(ErrorKind::kUsage, option, ": expected stages of the model; found a null pointer as ", what,
         "; take it out");
  }
  std::vector<size_t> places;
  for (size_t node = 0; node < tree.modules.size(); ++node) {
    if (tree.modules[node] == given) places.push_back(node);
  }
  if (places.empty()) {
    fail(ErrorKind::kUsage, option, ": expected stages inside the root; found ", what, " of type ",
         given->type_name(), ", which is not; register it as a module of the root or take it out");
  }
  if (places.size() > 1) {
    fail(ErrorKind::kUsage, option, ": expected stages that are at one place of the model; found ", what,
         " at \"", unit_name(tree.outline, places[0]), "\" and \"", unit_name(tree.outline, places[1]),
         "\"; make one unit of a stage around both, or a second stage");
  }
  return places.front();
}

}  // namespace

ModelTree make_model_tree(torch::nn::Module& root, const std::vector<nn::ParameterPart>& parts) {
  ModelTree tree;
  std::map<const void*, size_t> index;
  add_to_tree(tree, index, root, "", 0);
  if (parts.empty()) return tree;
  for (nn::OutlineParameter& parameter : tree.outline.parameters) {
    const nn::ParameterPart& part = part_named(parts, parameter.names);
    FSDP_CHECK(parameter.shape == part.shape, part.name, " is no part as it was given");
    parameter.whole_shape = part.whole_shape;
    parameter.holders = static_cast<int>(part.holders);
    parameter.shares_gradient = part.shares_gradient;
  }
  return tree;
}

WrapPolicy threshold_policy(int64_t min_num_params) {
  return [min_num_params](const StageInfo& info) { return is_large_enough(info.numel, min_num_params); };
}

WrapPolicy stage_type_policy(std::vector<std::string> types) {
  return [types = std::move(types)](const StageInfo& info) {
    return std::find(types.begin(), types.end(), info.module.type_name()) != types.end();
  };
}

WrapPolicy any_of(std::vector<WrapPolicy> policies) {
  for (size_t i = 0; i < policies.size(); ++i) {
    if (!policies[i]) {
      fail(ErrorKind::kUsage,
           "any_of: expected wrap policies that can be called; found an empty one at place ", i, " of ",
           policies.size(), "; take it out");
    }
  }
  return [policies = std::move(policies)](const StageInfo& info) {
    return std::any_of(policies.begin(), policies.end(),
                       [&info](const WrapPolicy& policy) { return policy(info); });
  };
}

UnitDecisions unit_decisions(const ModelTree& tree, const ShardOptions& options) {
  UnitDecisions decisions;
  if (options.wrap_policy) {
    decisions.wraps = [&](size_t node, int64_t numel) {
      return options.wrap_policy(
          {.module = *tree.modules[node], .path = tree.outline.nodes[node].path, .numel = numel});
    };
  }
  decisions.given = options.units.size();
  decisions.given_node = [&](size_t index) {
    return place_of_given(tree, options.units[index], "units", concat("units[", index, "]"));
  };
  for (const auto& [module, own] : options.wrapped) {
    decisions.wrapped.push_back({place_of_given(tree, module, "wrap()", "a module"), own});
  }
  for (const nn::Hookable* module : options.closed) {
    decisions.closed.insert(place_of_given(tree, module, "fully_shard()", "a sharded module"));
  }
  return decisions;
}

std::vector<UnitPlan> plan_units(torch::nn::Module& root, const ShardOptions& options) {
  const ModelTree tree = make_model_tree(root, options.parts);
  if (tree.modules.front() == nullptr) {
    fail(ErrorKind::kUsage, "fully_shard(): expected a root module whose calls can be hooked; found a plain ",
         root.name(), "; declare it as fsdp::nn::Hooked<", root.name(), ">, or derive it from nn::Stage");
  }
  std::vector<UnitPlan> plans;
  for (const UnitChoice& unit : choose_units(tree.outline, options, unit_decisions(tree, options))) {
    UnitPlan& plan = plans.emplace_back();
    plan.name = unit.name;
    plan.module = tree.modules[unit.node];
    plan.options = unit.options;
    for (const UnitChoice::Parameter& parameter : unit.parameters) {
      const std::vector<std::string>& names = tree.outline.parameters[parameter.index].names;
      plan.parameters.push_back({names.front(),
                                 tree.tensors[parameter.index],
                                 {names.begin() + 1, names.end()},
                                 parameter.shard_dimension});
      if (!options.parts.empty()) plan.parameters.back().part = part_named(options.parts, names);
    }
  }
  return plans;
}

}  // namespace fsdp::shard
