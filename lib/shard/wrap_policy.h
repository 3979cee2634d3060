#pragma once

// Which stages of a model become units, and which parameters each unit holds.
//
// Three ways to choose the units, of which the first that is given holds:
//   units                        exactly these stages and the root
//   wrap_policy                  a callable decides about each stage
//   min_num_params, wrap_stages  a stage that is large enough, or of one of these types
// exclude_stages and leaf_stages hold for the last two.

#include <cstdint>
#include <string>
#include <vector>

#include "nn/hooked.h"
#include "shard/model_tree.h"
#include "shard/named_parameter.h"
#include "shard/options.h"
#include "shard/unit_choice.h"

namespace fsdp::shard {

/// A stage with at least this many parameters that no unit inside it holds becomes a unit (FairScale's
/// default_auto_wrap_policy, PyTorch's size_based_auto_wrap_policy).
WrapPolicy threshold_policy(int64_t min_num_params);

/// A stage whose Stage::type_name() is one of these becomes a unit (PyTorch's
/// transformer_auto_wrap_policy). The types are not checked against any model.
WrapPolicy stage_type_policy(std::vector<std::string> types);

/// A stage becomes a unit when one of the policies says so; none of no policies. The policies are asked in
/// order until one does. Throws Error(kUsage) for a policy that is empty.
WrapPolicy any_of(std::vector<WrapPolicy> policies);

/// Those of the options that speak of modules, for choose_units() on the outline of the tree. They refer to
/// both arguments.
UnitDecisions unit_decisions(const ModelTree& tree, const ShardOptions& options);

/// A stage that becomes a unit, with the parameters of which it is the nearest enclosing unit.
struct UnitPlan {
  std::string name;  ///< dotted path of the stage; "root" for the outermost
  nn::Hookable* module = nullptr;
  std::vector<NamedParameter> parameters;
  bool replicated = false;    ///< whole on every rank, see ShardOptions::replicated_parameters
  bool keep_float32 = false;  ///< see MixedPrecisionOptions::keep_float32
};

/// Plans the units of the model; local, and the same on every rank that has the same model and options. The
/// options are supposed to be free of conflicts (shard/option_conflicts.h).
///
/// The root's plan comes first and is there even when other units hold all parameters. Next, where they hold
/// anything, come plans of stage `root` for the parameters that
///   "root.replicated"          options.replicated_parameters names,
///   "root.float32"             options.mixed_precision.keep_float32 names,
///   "root.replicated.float32"  both name;
/// these parameters count for no other unit. With fsdp.layout = "per_parameter", those that its dimension
/// policy leaves whole are replicated too. keep_float32 has no effect when param_dtype and reduce_dtype are
/// float32. Then come the other units in the order of the modules, none of them empty.
///
/// Automatic choice is FairScale's recursive one (fairscale/nn/wrap/auto_wrap.py): children first; each stage
/// with parameters that no unit inside it holds is a candidate, unless its type is in options.exclude_stages
/// or a stage around it is of a type in options.leaf_stages; the policy decides. (FairScale's
/// force_leaf_modules never are units themselves either: name the type in exclude_stages as well for that.)
/// What is left goes to the nearest enclosing unit. A parameter that several stages share belongs to the
/// innermost unit around all its places, so tied weights are always in one unit.
///
/// With options.units a stage of any type may be a unit. Each must be inside `root`, at one place, be given
/// once and have parameters that no unit inside it holds, and all places of a tied parameter must belong to
/// one unit.
///
/// Throws Error(kUsage) for units that break these rules, for a type in wrap_stages or leaf_stages that no
/// stage has, for a pattern that matches no parameter, and for one in keep_after_forward that matches no
/// unit.
std::vector<UnitPlan> plan_units(torch::nn::Module& root, const ShardOptions& options);

}  // namespace fsdp::shard
