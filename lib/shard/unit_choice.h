#pragma once

// Which stages of a model become units, decided on its outline: the rules of plan_units() (wrap_policy.h,
// where they are told), for models that are there and for those that are not. Needs no libtorch.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "nn/model_outline.h"
#include "shard/options.h"

namespace fsdp::shard {

/// What ShardOptions::shard_dimension and shard_1d_parameters say.
DimensionPolicy shard_dimension_policy(util::Named<ShardDimension> choice, bool shard_1d_parameters);

/// A stage that becomes a unit, with the parameters of which it is the nearest enclosing unit.
struct UnitChoice {
  /// Of the outline's parameters.
  struct Parameter {
    size_t index = 0;
    int64_t shard_dimension = 0;  ///< on which the per_parameter layout cuts it
  };

  std::string name;  ///< dotted path of the stage; "root" for the outermost
  size_t node = 0;   ///< of the outline
  std::vector<Parameter> parameters;
  bool replicated = false;    ///< whole on every rank, see ShardOptions::replicated_parameters
  bool keep_float32 = false;  ///< see MixedPrecisionOptions::keep_float32

  bool is_root() const { return node == 0; }  ///< lives as the root does
};

/// Who decides in place of names and sizes, for options that speak of modules.
struct UnitDecisions {
  /// Whether the stage at a node with so many parameters becomes a unit; empty: min_num_params and
  /// wrap_stages say so.
  std::function<bool(size_t node, int64_t numel)> wraps{};
  /// Above 0: exactly so many given stages and the root become units; `given_node` tells where each is.
  size_t given = 0;
  std::function<size_t(size_t index)> given_node{};
};

/// As plan_units(). Options that need modules (units, wrap_policy) are not looked at: `decisions` stand for
/// them.
std::vector<UnitChoice> choose_units(const nn::ModelOutline& model, const ShardOptions& options,
                                     const UnitDecisions& decisions = {});

/// What a unit of this node is called.
const std::string& unit_name(const nn::ModelOutline& model, size_t node);

}  // namespace fsdp::shard
