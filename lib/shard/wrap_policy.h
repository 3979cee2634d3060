#pragma once

// Which stages of a model become units, and which parameters each unit holds.

#include <string>
#include <vector>

#include "nn/stage.h"
#include "shard/options.h"

namespace fsdp::shard {

/// A parameter under the first of its names; tied names share one tensor and appear once.
struct NamedParameter {
  std::string name;
  at::Tensor tensor;
};

/// A stage that becomes a unit, with the parameters of which it is the nearest enclosing unit.
struct UnitPlan {
  std::string name;  ///< dotted path of the stage; "root" for the outermost
  nn::Stage* stage = nullptr;
  std::vector<NamedParameter> parameters;
  bool replicated = false;    ///< whole on every rank, see ShardOptions::replicated_parameters
  bool keep_float32 = false;  ///< see MixedPrecisionOptions::keep_float32
};

/// FairScale's recursive auto-wrapping (fairscale/nn/wrap/auto_wrap.py): children first; a stage whose
/// parameters, less those that units inside it hold, number at least options.min_num_params becomes a unit,
/// unless its type is one of options.exclude_stages. What is left goes to the nearest enclosing unit; the
/// root always is one.
///
/// A parameter that several stages share belongs to the innermost stage around all of them, so tied weights
/// are always in one unit. The order is that of the modules, the root first.
std::vector<UnitPlan> plan_units(nn::Stage& root, const ShardOptions& options);

}  // namespace fsdp::shard
