#include "shard/unit_choice.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <utility>

#include "shard/name_checks.h"
#include "shard/per_parameter_layout.h"
#include "util/error.h"
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

/// "[2, 3]".
std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text;
  for (int64_t size : shape) text += util::concat(text.empty() ? "" : ", ", size);
  return util::concat("[", text, "]");
}

class Chooser {
 public:
  Chooser(const nn::ModelOutline& model, const ShardOptions& options, const UnitDecisions& decisions)
      : options_(options),
        decisions_(decisions),
        model_(model),
        is_unit_(model_.nodes.size(), false),
        replicated_(model_.parameters.size(), false),
        keep_float32_(model_.parameters.size(), false),
        shard_dimension_(model_.parameters.size(), 0),
        holder_(model_.parameters.size(), kNobody) {}

  std::vector<UnitChoice> run() {
    check_types();
    take_out_special_parameters();
    is_unit_[kRoot] = true;
    if (decisions_.given == 0) {
      choose_automatically();
    } else {
      choose_given();
    }
    auto units = make_choices();
    check_keep_after_forward(units);
    return units;
  }

 private:
  void check_types() const {
    std::set<std::string> types;
    for (const nn::OutlineNode& node : model_.nodes) {
      if (node.is_stage) types.insert(node.type);
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
    if (options_.layout == Layout::kPerParameter) choose_dimensions();
  }

  void choose_dimensions() {
    DimensionPolicy policy = options_.dimension_policy ? options_.dimension_policy
                                                       : shard_dimension_policy(options_.shard_dimension,
                                                                                options_.shard_1d_parameters);
    for (size_t i = 0; i < model_.parameters.size(); ++i) {
      const std::string& name = model_.parameters[i].names.front();
      const std::vector<int64_t>& shape = model_.parameters[i].shape;
      std::optional<int64_t> dimension = policy(name, shape);
      if (!dimension) {
        // Under no_shard everything is whole already.
        if (options_.strategy != Strategy::kNoShard) replicated_[i] = true;
        continue;
      }
      int64_t dimensions = std::max<int64_t>(1, static_cast<int64_t>(shape.size()));
      if (*dimension < 0 || *dimension >= dimensions) {
        fail(ErrorKind::kUsage, "dimension_policy: expected a dimension in [0, ", dimensions, ") of ", name,
             ", which has the shape ", shape_text(shape), "; found ", *dimension,
             "; return one of them, or nothing for a parameter that stays whole");
      }
      shard_dimension_[i] = *dimension;
    }
  }

  void mark(const GivenNames& patterns, std::vector<bool>& marks) const {
    if (patterns.names.empty()) return;
    std::vector<std::string> names;
    for (const nn::OutlineParameter& parameter : model_.parameters) {
      names.insert(names.end(), parameter.names.begin(), parameter.names.end());
    }
    check_parameter_patterns(patterns, names);
    for (size_t i = 0; i < model_.parameters.size(); ++i) {
      for (const std::string& name : model_.parameters[i].names) {
        if (util::matches_any(name, patterns.names)) marks[i] = true;
      }
    }
  }

  bool is_taken_out(size_t parameter) const { return replicated_[parameter] || keep_float32_[parameter]; }

  // ---- automatic choice

  void choose_automatically() {
    choose_inside(kRoot);
    for (size_t& holder : holder_) {
      if (holder == kNobody) holder = kRoot;
    }
  }

  void choose_inside(size_t around) {
    if (is_of_type(around, options_.leaf_stages)) return;
    for (size_t node = around + 1; node < model_.nodes[around].end; node = model_.nodes[node].end) {
      choose_inside(node);
      decide(node);
    }
  }

  void decide(size_t node) {
    if (!model_.nodes[node].is_stage || is_of_type(node, options_.exclude_stages)) return;
    std::vector<size_t> left;
    int64_t numel = 0;
    for (size_t i = 0; i < model_.parameters.size(); ++i) {
      if (is_taken_out(i) || holder_[i] != kNobody || !lies_inside(model_.parameters[i], model_, node)) {
        continue;
      }
      left.push_back(i);
      numel += model_.parameters[i].numel();
    }
    if (left.empty() || !wraps(node, numel)) return;
    is_unit_[node] = true;
    for (size_t parameter : left) holder_[parameter] = node;
  }

  bool wraps(size_t node, int64_t numel) const {
    if (decisions_.wraps) return decisions_.wraps(node, numel);
    return contains(options_.wrap_stages, model_.nodes[node].type) || numel >= options_.min_num_params;
  }

  bool is_of_type(size_t node, const std::vector<std::string>& types) const {
    const nn::OutlineNode& at = model_.nodes[node];
    return at.is_stage && contains(types, at.type);
  }

  // ---- given units

  void choose_given() {
    std::set<size_t> given;
    for (size_t i = 0; i < decisions_.given; ++i) {
      size_t node = decisions_.given_node(i);
      if (!given.insert(node).second) {
        fail(ErrorKind::kUsage, "units: expected each stage once; found \"", unit_name(model_, node),
             "\" again as units[", i, "]; take it out");
      }
      is_unit_[node] = true;
    }
    std::set<size_t> in_use = {kRoot};
    for (size_t i = 0; i < model_.parameters.size(); ++i) {
      for (size_t node : model_.parameters[i].nodes) in_use.insert(nearest_unit(node));
      // The plans of parameters that are taken out are the root's, which is around every place.
      if (!is_taken_out(i)) holder_[i] = holder_of_given(model_.parameters[i]);
    }
    for (size_t node : given) {
      if (in_use.count(node) > 0) continue;
      fail(ErrorKind::kUsage,
           "units: expected stages with parameters that no unit inside them holds; found \"",
           unit_name(model_, node), "\" of type ", model_.nodes[node].type, ", which has none; take it out");
    }
  }

  size_t nearest_unit(size_t node) const {
    while (!is_unit_[node]) node = model_.nodes[node].parent;
    return node;
  }

  size_t holder_of_given(const nn::OutlineParameter& parameter) const {
    size_t holder = nearest_unit(parameter.nodes.front());
    for (size_t node : parameter.nodes) {
      size_t other = nearest_unit(node);
      if (other == holder) continue;
      fail(ErrorKind::kUsage, "units: expected all places of a tied parameter in one unit; found ",
           util::join(parameter.names, " = "), " in the units \"", unit_name(model_, holder), "\" and \"",
           unit_name(model_, other),
           "\"; give one stage around all places and none of the stages between it and them, or untie the "
           "parameter");
    }
    return holder;
  }

  // ---- the result

  std::vector<UnitChoice> make_choices() const {
    std::array<UnitChoice, 3> extras = {
        UnitChoice{.name = "root.replicated", .parameters = {}, .replicated = true},
        UnitChoice{.name = "root.float32", .parameters = {}, .keep_float32 = true},
        UnitChoice{
            .name = "root.replicated.float32", .parameters = {}, .replicated = true, .keep_float32 = true}};
    std::vector<std::vector<UnitChoice::Parameter>> held(model_.nodes.size());
    for (size_t i = 0; i < model_.parameters.size(); ++i) {
      const UnitChoice::Parameter parameter = {.index = i, .shard_dimension = shard_dimension_[i]};
      if (is_taken_out(i)) {
        size_t extra = !keep_float32_[i] ? 0 : (!replicated_[i] ? 1 : 2);
        extras[extra].parameters.push_back(parameter);
      } else {
        held[holder_[i]].push_back(parameter);
      }
    }

    std::vector<UnitChoice> units;
    units.push_back({.name = unit_name(model_, kRoot), .node = kRoot, .parameters = std::move(held[kRoot])});
    for (UnitChoice& extra : extras) {
      if (!extra.parameters.empty()) units.push_back(std::move(extra));
    }
    for (size_t node = kRoot + 1; node < model_.nodes.size(); ++node) {
      if (held[node].empty()) continue;
      units.push_back({.name = unit_name(model_, node), .node = node, .parameters = std::move(held[node])});
    }
    return units;
  }

  void check_keep_after_forward(const std::vector<UnitChoice>& units) const {
    if (options_.keep_after_forward.empty()) return;
    std::vector<std::string> names;
    for (const UnitChoice& unit : units) names.push_back(unit.name);
    check_unit_patterns({"fsdp.keep_after_forward", options_.keep_after_forward}, names);
  }

  const ShardOptions& options_;
  const UnitDecisions& decisions_;
  const nn::ModelOutline& model_;
  std::vector<bool> is_unit_;                    ///< by node
  std::vector<bool> replicated_, keep_float32_;  ///< by parameter
  std::vector<int64_t> shard_dimension_;         ///< by parameter
  std::vector<size_t> holder_;                   ///< node of the unit, by parameter; not of those taken out
};

}  // namespace

DimensionPolicy shard_dimension_policy(util::Named<ShardDimension> choice, bool shard_1d_parameters) {
  bool largest = choice == ShardDimension::kLargest;
  return [largest, shard_1d_parameters](const std::string&,
                                        const std::vector<int64_t>& shape) -> std::optional<int64_t> {
    if (shape.size() < 2 && !shard_1d_parameters) return std::nullopt;
    return largest ? largest_dimension(shape) : 0;
  };
}

const std::string& unit_name(const nn::ModelOutline& model, size_t node) {
  static const std::string kRootName = "root";
  return node == kRoot ? kRootName : model.nodes[node].path;
}

std::vector<UnitChoice> choose_units(const nn::ModelOutline& model, const ShardOptions& options,
                                     const UnitDecisions& decisions) {
  return Chooser(model, options, decisions).run();
}

}  // namespace fsdp::shard
