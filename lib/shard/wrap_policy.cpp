#include "shard/wrap_policy.h"

#include <algorithm>
#include <array>
#include <set>

#include "shard/model_tree.h"
#include "shard/name_checks.h"
#include "shard/per_parameter_layout.h"
#include "util/error.h"
#include "util/name_patterns.h"
#include "util/text.h"

namespace fsdp::shard {
namespace {

using util::ErrorKind;
using util::fail;

constexpr size_t kRoot = 0;
constexpr size_t kNobody = static_cast<size_t>(-1);

bool contains(const std::vector<std::string>& list, const std::string& entry) {
  return std::find(list.begin(), list.end(), entry) != list.end();
}

class Planner {
 public:
  Planner(nn::Stage& root, const ShardOptions& options)
      : options_(options),
        tree_(make_model_tree(root)),
        is_unit_(tree_.nodes.size(), false),
        replicated_(tree_.parameters.size(), false),
        keep_float32_(tree_.parameters.size(), false),
        shard_dimension_(tree_.parameters.size(), 0),
        holder_(tree_.parameters.size(), kNobody) {}

  std::vector<UnitPlan> plan() {
    check_types();
    take_out_special_parameters();
    is_unit_[kRoot] = true;
    if (options_.units.empty()) {
      choose_automatically();
    } else {
      choose_given();
    }
    auto plans = make_plans();
    check_keep_after_forward(plans);
    return plans;
  }

 private:
  void check_types() const {
    std::set<std::string> types;
    for (const ModelNode& node : tree_.nodes) {
      if (node.stage != nullptr) types.insert(node.stage->type_name());
    }
    std::vector<std::string> known(types.begin(), types.end());
    check_stage_types({"fsdp.wrap_stages", options_.wrap_stages}, known);
    check_stage_types({"fsdp.leaf_stages", options_.leaf_stages}, known);
  }

  void take_out_special_parameters() {
    const MixedPrecisionOptions& mixed = options_.mixed_precision;
    bool is_mixed = mixed.param_dtype != "float32" || mixed.reduce_dtype != "float32";
    mark({"fsdp.replicated_parameters", options_.replicated_parameters}, replicated_);
    if (is_mixed) mark({"mixed_precision.keep_float32", mixed.keep_float32}, keep_float32_);
    if (options_.layout == "per_parameter") choose_dimensions();
  }

  void choose_dimensions() {
    DimensionPolicy policy = options_.dimension_policy ? options_.dimension_policy
                                                       : shard_dimension_policy(options_.shard_dimension,
                                                                                options_.shard_1d_parameters);
    for (size_t i = 0; i < tree_.parameters.size(); ++i) {
      const std::string& name = tree_.parameters[i].names.front();
      auto shape = tree_.parameters[i].tensor.sizes().vec();
      std::optional<int64_t> dimension = policy(name, shape);
      if (!dimension) {
        // Under no_shard everything is whole already.
        if (options_.strategy != "no_shard") replicated_[i] = true;
        continue;
      }
      int64_t dimensions = std::max<int64_t>(1, static_cast<int64_t>(shape.size()));
      if (*dimension < 0 || *dimension >= dimensions) {
        fail(ErrorKind::kUsage, "dimension_policy: expected a dimension in [0, ", dimensions, ") of ", name,
             ", which has the shape ", at::IntArrayRef(shape), "; found ", *dimension,
             "; return one of them, or nothing for a parameter that stays whole");
      }
      shard_dimension_[i] = *dimension;
    }
  }

  void mark(const GivenNames& patterns, std::vector<bool>& marks) const {
    if (patterns.names.empty()) return;
    std::vector<std::string> names;
    for (const ModelParameter& parameter : tree_.parameters) {
      names.insert(names.end(), parameter.names.begin(), parameter.names.end());
    }
    check_parameter_patterns(patterns, names);
    for (size_t i = 0; i < tree_.parameters.size(); ++i) {
      for (const std::string& name : tree_.parameters[i].names) {
        if (util::matches_any(name, patterns.names)) marks[i] = true;
      }
    }
  }

  bool is_taken_out(size_t parameter) const { return replicated_[parameter] || keep_float32_[parameter]; }

  // ---- automatic choice

  void choose_automatically() {
    WrapPolicy policy = options_.wrap_policy;
    if (!policy) {
      policy = any_of({stage_type_policy(options_.wrap_stages), threshold_policy(options_.min_num_params)});
    }
    choose_inside(kRoot, policy);
    for (size_t& holder : holder_) {
      if (holder == kNobody) holder = kRoot;
    }
  }

  void choose_inside(size_t around, const WrapPolicy& policy) {
    if (is_of_type(around, options_.leaf_stages)) return;
    for (size_t node = around + 1; node < tree_.nodes[around].end; node = tree_.nodes[node].end) {
      choose_inside(node, policy);
      decide(node, policy);
    }
  }

  void decide(size_t node, const WrapPolicy& policy) {
    const ModelNode& at = tree_.nodes[node];
    if (at.stage == nullptr || is_of_type(node, options_.exclude_stages)) return;
    std::vector<size_t> left;
    int64_t numel = 0;
    for (size_t i = 0; i < tree_.parameters.size(); ++i) {
      if (is_taken_out(i) || holder_[i] != kNobody || !lies_inside(tree_.parameters[i], tree_, node)) {
        continue;
      }
      left.push_back(i);
      numel += tree_.parameters[i].tensor.numel();
    }
    if (left.empty() || !policy({.stage = *at.stage, .path = at.path, .numel = numel})) return;
    is_unit_[node] = true;
    for (size_t parameter : left) holder_[parameter] = node;
  }

  bool is_of_type(size_t node, const std::vector<std::string>& types) const {
    const nn::Stage* stage = tree_.nodes[node].stage;
    return stage != nullptr && contains(types, stage->type_name());
  }

  // ---- given units

  void choose_given() {
    std::set<size_t> given;
    for (size_t i = 0; i < options_.units.size(); ++i) {
      size_t node = place_of_given(i);
      if (!given.insert(node).second) {
        fail(ErrorKind::kUsage, "units: expected each stage once; found \"", unit_name(node),
             "\" again as units[", i, "]; take it out");
      }
      is_unit_[node] = true;
    }
    std::set<size_t> in_use = {kRoot};
    for (size_t i = 0; i < tree_.parameters.size(); ++i) {
      for (size_t node : tree_.parameters[i].nodes) in_use.insert(nearest_unit(node));
      // The plans of parameters that are taken out are the root's, which is around every place.
      if (!is_taken_out(i)) holder_[i] = holder_of_given(tree_.parameters[i]);
    }
    for (size_t node : given) {
      if (in_use.count(node) > 0) continue;
      fail(ErrorKind::kUsage,
           "units: expected stages with parameters that no unit inside them holds; found \"", unit_name(node),
           "\" of type ", tree_.nodes[node].stage->type_name(), ", which has none; take it out");
    }
  }

  size_t place_of_given(size_t index) const {
    const nn::Stage* stage = options_.units[index];
    if (stage == nullptr) {
      fail(ErrorKind::kUsage, "units: expected stages of the model; found a null pointer as units[", index,
           "]; take it out");
    }
    std::vector<size_t> places;
    for (size_t node = 0; node < tree_.nodes.size(); ++node) {
      if (tree_.nodes[node].stage == stage) places.push_back(node);
    }
    if (places.empty()) {
      fail(ErrorKind::kUsage, "units: expected stages inside the root; found units[", index, "] of type ",
           stage->type_name(), ", which is not; register it as a module of the root or take it out");
    }
    if (places.size() > 1) {
      fail(ErrorKind::kUsage, "units: expected stages that are at one place of the model; found units[",
           index, "] at \"", unit_name(places[0]), "\" and \"", unit_name(places[1]),
           "\"; make one unit of a stage around both, or a second stage");
    }
    return places.front();
  }

  size_t nearest_unit(size_t node) const {
    while (!is_unit_[node]) node = tree_.nodes[node].parent;
    return node;
  }

  size_t holder_of_given(const ModelParameter& parameter) const {
    size_t holder = nearest_unit(parameter.nodes.front());
    for (size_t node : parameter.nodes) {
      size_t other = nearest_unit(node);
      if (other == holder) continue;
      fail(ErrorKind::kUsage, "units: expected all places of a tied parameter in one unit; found ",
           util::join(parameter.names, " = "), " in the units \"", unit_name(holder), "\" and \"",
           unit_name(other),
           "\"; give one stage around all places and none of the stages between it and them, or untie the "
           "parameter");
    }
    return holder;
  }

  // ---- plans

  const std::string& unit_name(size_t node) const {
    static const std::string kRootName = "root";
    return node == kRoot ? kRootName : tree_.nodes[node].path;
  }

  std::vector<UnitPlan> make_plans() const {
    nn::Stage* root = tree_.nodes[kRoot].stage;
    std::array<UnitPlan, 3> extras = {
        UnitPlan{.name = "root.replicated", .stage = root, .parameters = {}, .replicated = true},
        UnitPlan{.name = "root.float32", .stage = root, .parameters = {}, .keep_float32 = true},
        UnitPlan{.name = "root.replicated.float32",
                 .stage = root,
                 .parameters = {},
                 .replicated = true,
                 .keep_float32 = true}};
    std::vector<std::vector<NamedParameter>> held(tree_.nodes.size());
    for (size_t i = 0; i < tree_.parameters.size(); ++i) {
      const std::vector<std::string>& names = tree_.parameters[i].names;
      NamedParameter parameter = {
          names.front(), tree_.parameters[i].tensor, {names.begin() + 1, names.end()}, shard_dimension_[i]};
      if (is_taken_out(i)) {
        size_t extra = !keep_float32_[i] ? 0 : (!replicated_[i] ? 1 : 2);
        extras[extra].parameters.push_back(std::move(parameter));
      } else {
        held[holder_[i]].push_back(std::move(parameter));
      }
    }

    std::vector<UnitPlan> plans;
    plans.push_back({.name = unit_name(kRoot), .stage = root, .parameters = std::move(held[kRoot])});
    for (UnitPlan& extra : extras) {
      if (!extra.parameters.empty()) plans.push_back(std::move(extra));
    }
    for (size_t node = kRoot + 1; node < tree_.nodes.size(); ++node) {
      if (held[node].empty()) continue;
      plans.push_back(
          {.name = unit_name(node), .stage = tree_.nodes[node].stage, .parameters = std::move(held[node])});
    }
    return plans;
  }

  void check_keep_after_forward(const std::vector<UnitPlan>& plans) const {
    if (options_.keep_after_forward.empty()) return;
    std::vector<std::string> names;
    for (const UnitPlan& plan : plans) names.push_back(plan.name);
    check_unit_patterns({"fsdp.keep_after_forward", options_.keep_after_forward}, names);
  }

  const ShardOptions& options_;
  ModelTree tree_;
  std::vector<bool> is_unit_;                    ///< by node
  std::vector<bool> replicated_, keep_float32_;  ///< by parameter
  std::vector<int64_t> shard_dimension_;         ///< by parameter
  std::vector<size_t> holder_;                   ///< node of the unit, by parameter; not of those taken out
};

}  // namespace

WrapPolicy threshold_policy(int64_t min_num_params) {
  return [min_num_params](const StageInfo& info) { return info.numel >= min_num_params; };
}

WrapPolicy stage_type_policy(std::vector<std::string> types) {
  return
      [types = std::move(types)](const StageInfo& info) { return contains(types, info.stage.type_name()); };
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

DimensionPolicy shard_dimension_policy(const std::string& choice, bool shard_1d_parameters) {
  bool largest = choice == "largest";
  return [largest, shard_1d_parameters](const std::string&,
                                        const std::vector<int64_t>& shape) -> std::optional<int64_t> {
    if (shape.size() < 2 && !shard_1d_parameters) return std::nullopt;
    return largest ? largest_dimension(shape) : 0;
  };
}

std::vector<UnitPlan> plan_units(nn::Stage& root, const ShardOptions& options) {
  return Planner(root, options).plan();
}

}  // namespace fsdp::shard
