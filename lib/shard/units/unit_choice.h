#pragma once

// The choice of the stages that become units, made on a model's outline. shard/engine/wrap_policy.h lists the
// rules, which are the same for models with and without modules.

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "model/families/model_outline.h"
#include "shard/units/options.h"
#include "shard/units/unit_options.h"

namespace fsdp::shard {

/// The policy that ShardOptions::shard_dimension and shard_1d_parameters stand for.
DimensionPolicy shard_dimension_policy(util::Named<ShardDimension> choice, bool shard_1d_parameters);

/// A stage that becomes a unit, with the parameters of which it is the nearest enclosing unit.
struct UnitChoice {
  struct Parameter {
    size_t index = 0;             ///< index into the outline's parameters
    int64_t shard_dimension = 0;  ///< dimension on which the per_parameter layout cuts it
  };

  std::string name;  ///< dotted path of the stage; "root" for the outermost
  size_t node = 0;   ///< node of the outline
  std::vector<Parameter> parameters;
  UnitOptions options;

  bool is_root() const { return node == 0; }  ///< whether it has the lifetime of the root unit
};

/// Stand-ins for the options that need modules (units, wrapped, wrap_policy).
struct UnitDecisions {
  /// Whether the stage at a node becomes a unit of `numel` elements; empty: min_num_params and wrap_stages
  /// decide.
  std::function<bool(size_t node, int64_t numel)> wraps{};
  /// Above 0: exactly this many given stages and the root become units; `given_node` maps each to its node.
  size_t given = 0;
  std::function<size_t(size_t index)> given_node{};
  /// A stage that is a unit in addition, and its options.
  struct Wrapped {
    size_t node = 0;
    UnitOverrides options{};
  };
  std::vector<Wrapped> wrapped{};
  /// Nodes of the stages inside which nothing else becomes a unit.
  std::set<size_t> closed{};
};

/// The rule of ShardOptions::min_num_params and threshold_policy(): whether a stage becomes a unit that holds
/// `numel` elements.
bool is_large_enough(int64_t numel, int64_t min_num_params);

/// Returns the units that plan_units() plans. `decisions` replace options.units, wrapped and wrap_policy.
std::vector<UnitChoice> choose_units(const nn::ModelOutline& model, const ShardOptions& options,
                                     const UnitDecisions& decisions = {});

/// The name of the unit at a node.
const std::string& unit_name(const nn::ModelOutline& model, size_t node);

/// Throws Error(kUsage) unless each of `patterns` (base/util/text.h), the value of `option`, matches one
/// of the names of units.
void check_unit_patterns(const char* option, const std::vector<std::string>& patterns,
                         const std::vector<std::string>& names);

}  // namespace fsdp::shard
