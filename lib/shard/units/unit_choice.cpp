#include "shard/units/unit_choice.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "base/util/error.h"
#include "base/util/nearest_pattern.h"
#include "base/util/shape.h"
#include "base/util/text.h"
#include "shard/units/option_conflicts.h"

namespace fsdp::shard {
namespace {

using Names = std::vector<std::string>;

constexpr size_t kRoot = 0;
constexpr size_t kNobody = static_cast<size_t>(-1);

bool contains(const Names& list, const std::string& entry) {
  return std::find(list.begin(), list.end(), entry) != list.end();
}

class UnitChooser {
 public:
  UnitChooser(const nn::ModelOutline& model, const ShardOptions& options, const UnitDecisions& decisions)
      : options_(options),
        decisions_(decisions),
        model_(model),
        is_unit_(model_.nodes.size(), false),
        assigned_(model_.parameters.size()) {}

  std::vector<UnitChoice> run() {
    check_types();
    is_unit_[kRoot] = true;
    note_wrapped();
    take_out_special_parameters();
    if (decisions_.given == 0) {
      choose_inside(kRoot, /*wrapped_only=*/false);
      check_in_use("wrap()", "leave the call out");
    } else {
      choose_given();
    }
    auto units = make_choices();
    Names names;
    for (const UnitChoice& unit : units) names.push_back(unit.name);
    check_unit_patterns("fsdp.keep_after_forward", options_.keep_after_forward, names);
    return units;
  }

 private:
  /// The unit that a parameter is assigned to.
  struct Assignment {
    bool replicated = false, keep_float32 = false, trained_apart = false;
    bool quantized = false;  ///< whether its values are bytes, which form units of their own
    int64_t shard_dimension = 0;
    size_t holder = kNobody;  ///< node of its unit; kNobody: the root
    int model_holders = 1;    ///< nn::OutlineParameter::holders

    bool is_taken_out() const { return replicated || keep_float32 || trained_apart || model_holders > 1; }
  };
  /// The properties that parameters share which are taken out of their units and form a unit together.
  /// `quantized` is set for those of the root only, which also has other parameters.
  struct TakenOut {
    int model_holders = 1;
    bool shares_gradient = false, keep_float32 = false, replicated = false, trained_apart = false,
         quantized = false;
    auto operator<=>(const TakenOut&) const = default;

    std::string ending() const {
      return concat(model_holders > 1 ? concat(shares_gradient ? ".summed_over_" : ".held_by_", model_holders,
                                               "_model_ranks")
                                      : std::string(),
                    trained_apart ? ".trained" : "", quantized ? ".quantized" : "",
                    replicated ? ".replicated" : "", keep_float32 ? ".float32" : "");
    }
  };

  void check_types() const {
    std::set<std::string> types;
    for (const nn::OutlineNode& node : model_.nodes) {
      if (node.is_stage) types.insert(node.type);
    }
    const Names known(types.begin(), types.end());
    // The default excludes types that only some models have.
    static const Names kNone, kExcluded = ShardOptions{}.exclude_stages;
    for (const auto& [option, given, fine] :
         {std::tuple("fsdp.wrap_stages", &options_.wrap_stages, &kNone),
          std::tuple("fsdp.leaf_stages", &options_.leaf_stages, &kNone),
          std::tuple("fsdp.exclude_stages", &options_.exclude_stages, &kExcluded)}) {
      for (const std::string& type : *given) {
        if (types.contains(type) || contains(*fine, type)) continue;
        fail(ErrorKind::kUsage, option, ": the model has no stage of type \"", type, "\", only of ",
             util::name_list(known), "; ", util::pattern_remedy(type, known));
      }
    }
  }

  void note_wrapped() {
    for (const auto& [node, own] : decisions_.wrapped) {
      const std::string& name = unit_name(model_, node);
      if (!wrapped_.emplace(node, own).second) {
        fail(ErrorKind::kUsage, "wrap(): expected each module once; found \"", name,
             "\" again; leave one of the calls out");
      }
      require_no_unit_conflicts(options_, own, name);
      is_unit_[node] = true;
    }
  }

  void take_out_special_parameters() {
    const MixedPrecisionOptions& mixed = options_.mixed_precision;
    const bool is_mixed = any_unit_is_mixed(options_);
    mark("fsdp.replicated_parameters", options_.replicated_parameters, &Assignment::replicated);
    if (is_mixed) mark("mixed_precision.keep_float32", mixed.keep_float32, &Assignment::keep_float32);
    if (options_.layout == Layout::kPerParameter) choose_dimensions();
    for (size_t i = 0; i < assigned_.size(); ++i) {
      assigned_[i].model_holders = model_.parameters[i].holders;
      assigned_[i].quantized = model_.parameters[i].quantized_elements > 0;
      assigned_[i].trained_apart = options_.trained_apart && model_.parameters[i].requires_grad;
    }
  }

  void choose_dimensions() {
    DimensionPolicy policy = options_.dimension_policy ? options_.dimension_policy
                                                       : shard_dimension_policy(options_.shard_dimension,
                                                                                options_.shard_1d_parameters);
    for (size_t i = 0; i < model_.parameters.size(); ++i) {
      const std::string& name = model_.parameters[i].names.front();
      const std::vector<int64_t>& shape = model_.parameters[i].shape;
      std::optional<int64_t> dimension = policy(name, shape);
      if (model_.parameters[i].quantized_elements > 0) dimension = 0;
      if (!dimension) {
        // Under no_shard everything is whole already.
        if (options_.strategy != Strategy::kNoShard) assigned_[i].replicated = true;
        continue;
      }
      int64_t dimensions = std::max<int64_t>(1, static_cast<int64_t>(shape.size()));
      if (*dimension < 0 || *dimension >= dimensions) {
        fail(ErrorKind::kUsage, "dimension_policy: expected a dimension in [0, ", dimensions, ") of ", name,
             ", which has the shape ", util::shape_text(shape), "; found ", *dimension,
             "; return one of them, or nothing for a parameter that stays whole");
      }
      assigned_[i].shard_dimension = *dimension;
    }
  }

  void mark(const char* option, const Names& patterns, bool Assignment::*mark) {
    Names names;
    for (const nn::OutlineParameter& parameter : model_.parameters) {
      names.insert(names.end(), parameter.names.begin(), parameter.names.end());
    }
    util::require_matches(option, patterns, names,
                          concat("parameters", names.empty() ? " (the model has none)"
                                                             : concat(" such as \"", names.front(), "\"")));
    for (size_t i = 0; i < model_.parameters.size(); ++i) {
      for (const std::string& name : model_.parameters[i].names) {
        if (util::matches_any(name, patterns)) assigned_[i].*mark = true;
      }
    }
  }

  // ---- automatic choice

  void choose_inside(size_t around, bool wrapped_only) {
    const nn::OutlineNode& outer = model_.nodes[around];
    wrapped_only = wrapped_only || decisions_.closed.contains(around) ||
                   (outer.is_stage && contains(options_.leaf_stages, outer.type));
    if (wrapped_only && wrapped_.empty()) return;
    for (size_t node = around + 1; node < outer.end; node = model_.nodes[node].end) {
      choose_inside(node, wrapped_only);
      if (!wrapped_only || wrapped_.contains(node)) decide(node);
    }
  }

  void decide(size_t node) {
    const nn::OutlineNode& stage = model_.nodes[node];
    const bool is_wrapped = wrapped_.contains(node);
    if (!is_wrapped && (!stage.is_stage || contains(options_.exclude_stages, stage.type))) return;
    std::vector<size_t> left;
    int64_t numel = 0;
    for (size_t i = 0; i < model_.parameters.size(); ++i) {
      const nn::OutlineParameter& parameter = model_.parameters[i];
      if (assigned_[i].is_taken_out() || assigned_[i].holder != kNobody) continue;
      if (!lies_inside(parameter, model_, node)) continue;
      left.push_back(i);
      numel += std::max(parameter.numel_of_whole(), parameter.quantized_elements);
    }
    if (left.empty()) return;
    // Other parameters of a stage with quantized weights, norms and biases, are small and go to the root's
    // unit.
    const auto is_other = [this](size_t i) { return !assigned_[i].quantized; };
    if (!std::ranges::all_of(left, is_other)) std::erase_if(left, is_other);
    const auto policy_wraps = [&] {
      return decisions_.wraps ? decisions_.wraps(node, numel)
                              : contains(options_.wrap_stages, stage.type) ||
                                    is_large_enough(numel, options_.min_num_params);
    };
    if (!is_wrapped && !policy_wraps()) return;
    is_unit_[node] = true;
    for (size_t parameter : left) assigned_[parameter].holder = node;
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
    for (size_t i = 0; i < model_.parameters.size(); ++i) {
      if (!assigned_[i].is_taken_out()) assigned_[i].holder = holder_of_given(model_.parameters[i]);
    }
    check_in_use("units", "take it out");
  }

  /// Checks that each unit holds a parameter, or is the nearest unit around one.
  void check_in_use(const char* option, const char* remedy) const {
    std::set<size_t> in_use = {kRoot};
    for (size_t i = 0; i < model_.parameters.size(); ++i) {
      for (size_t node : model_.parameters[i].nodes) in_use.insert(nearest_unit(node));
      in_use.insert(assigned_[i].holder);
    }
    for (size_t node = 0; node < is_unit_.size(); ++node) {
      if (!is_unit_[node] || in_use.contains(node)) continue;
      fail(ErrorKind::kUsage, option,
           ": expected stages with parameters that no unit inside them holds; found \"",
           unit_name(model_, node), "\" of type ", model_.nodes[node].type, ", which has none; ", remedy);
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

  /// Options that the unit at a node has of its own; most units have none.
  UnitOverrides own_options(size_t node) const {
    const auto found = wrapped_.find(node);
    return found == wrapped_.end() ? UnitOverrides() : found->second;
  }

  /// The unit with which a parameter that is taken out is used: a unit with options of its own, or the root.
  size_t unit_of_taken_out(const nn::OutlineParameter& parameter) const {
    const size_t node = nearest_unit(parameter.nodes.front());
    UnitOverrides own = own_options(node);
    own.reshard_after_forward.reset();  // parameters that are taken out have the root's lifetime
    return own == UnitOverrides() ? kRoot : node;
  }

  std::vector<UnitChoice> make_choices() const {
    using Parameters = std::vector<UnitChoice::Parameter>;
    std::vector<Parameters> held(model_.nodes.size());
    std::map<size_t, std::map<TakenOut, Parameters>> taken_out;  // keyed by node
    for (size_t i = 0; i < assigned_.size(); ++i) {
      const Assignment& assigned = assigned_[i];
      Parameters* parameters = &held[assigned.holder == kNobody ? kRoot : assigned.holder];
      if (assigned.is_taken_out() || (assigned.quantized && assigned.holder == kNobody)) {
        const TakenOut kind{
            .model_holders = assigned.model_holders,
            .shares_gradient = assigned.model_holders > 1 && model_.parameters[i].shares_gradient,
            .keep_float32 = assigned.keep_float32,
            .replicated = assigned.replicated,
            .trained_apart = assigned.trained_apart,
            .quantized = assigned.quantized};
        parameters = &taken_out[unit_of_taken_out(model_.parameters[i])][kind];
      }
      parameters->push_back({.index = i, .shard_dimension = assigned.shard_dimension});
    }

    std::vector<UnitChoice> units = {choice_of(kRoot, std::move(held[kRoot]))};
    for (auto& [node, kinds] : taken_out) {
      for (auto& [kind, parameters] : kinds) {
        units.push_back(taken_out_choice(node, kind, std::move(parameters)));
      }
    }
    for (size_t node = kRoot + 1; node < model_.nodes.size(); ++node) {
      if (!held[node].empty()) units.push_back(choice_of(node, std::move(held[node])));
    }
    return units;
  }

  UnitChoice choice_of(size_t node, std::vector<UnitChoice::Parameter> parameters) const {
    const std::string& name = unit_name(model_, node);
    UnitOptions options = unit_options(options_, name, node == kRoot, own_options(node));
    if (!parameters.empty() && assigned_[parameters.front().index].quantized) keep_as_bytes(options);
    return {.name = name, .node = node, .parameters = std::move(parameters), .options = options};
  }

  static void keep_as_bytes(UnitOptions& options) {
    options.storage.param_storage = options.storage.param_dtype = c10::ScalarType::Byte;
    options.cast_forward_inputs = false;
  }

  UnitChoice taken_out_choice(size_t node, const TakenOut& kind,
                              std::vector<UnitChoice::Parameter> parameters) const {
    const std::string name = unit_name(model_, node) + kind.ending();
    UnitOverrides own = own_options(node);
    if (node != kRoot) own.reshard_after_forward.reset();
    if (kind.trained_apart) own.param_storage = util::FloatType::kFloat32;
    if (kind.keep_float32) own.param_storage = own.param_dtype = own.reduce_dtype = util::FloatType::kFloat32;
    UnitOptions options = unit_options(options_, name, /*is_root=*/true, own);
    if (kind.replicated) options.strategy = Strategy::kNoShard;
    if (kind.quantized) keep_as_bytes(options);
    if (kind.keep_float32) options.links = {};
    if (kind.model_holders > 1) {
      options.holders = kind.model_holders;
      options.shares_gradient = kind.shares_gradient;
      // One reduction over all its replicas; cutting the state over slices would save little more.
      options.hybrid_optimizer = HybridOptimizer::kReplicated;
    }
    return {.name = name, .node = kRoot, .parameters = std::move(parameters), .options = options};
  }

  const ShardOptions& options_;
  const UnitDecisions& decisions_;
  const nn::ModelOutline& model_;
  std::map<size_t, UnitOverrides> wrapped_;  ///< keyed by node
  std::vector<bool> is_unit_;                ///< indexed by node
  std::vector<Assignment> assigned_;         ///< indexed by parameter
};

}  // namespace

DimensionPolicy shard_dimension_policy(util::Named<ShardDimension> choice, bool shard_1d_parameters) {
  bool largest = choice == ShardDimension::kLargest;
  return [largest, shard_1d_parameters](const std::string&,
                                        const std::vector<int64_t>& shape) -> std::optional<int64_t> {
    if (shape.size() < 2 && !shard_1d_parameters) return std::nullopt;
    return largest && !shape.empty() ? std::max_element(shape.begin(), shape.end()) - shape.begin() : 0;
  };
}

const std::string& unit_name(const nn::ModelOutline& model, size_t node) {
  static const std::string kRootName = "root";
  return node == kRoot ? kRootName : model.nodes[node].path;
}

bool is_large_enough(int64_t numel, int64_t min_num_params) { return numel >= min_num_params; }

std::vector<UnitChoice> choose_units(const nn::ModelOutline& model, const ShardOptions& options,
                                     const UnitDecisions& decisions) {
  return UnitChooser(model, options, decisions).run();
}

void check_unit_patterns(const char* option, const std::vector<std::string>& patterns,
                         const std::vector<std::string>& names) {
  util::require_matches(option, patterns, names, concat("units (", util::name_list(names), ")"));
}

}  // namespace fsdp::shard
