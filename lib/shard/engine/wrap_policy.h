#pragma once

// The stages of a model that become units, and the parameters that each unit holds.
//
// The first of these options that is set chooses the units:
//   units                        exactly these stages and the root
//   wrap_policy                  a callable decides for each stage
//   min_num_params, wrap_stages  stages that are large enough, or of one of these types
// exclude_stages and leaf_stages apply to the last two. Modules of options.wrapped (shard/engine/wrap.h) are
// units in any case.

#include <cstdint>
#include <string>
#include <vector>

#include "model/families/model_outline.h"
#include "model/nn/hookable.h"
#include "shard/engine/parameter_source.h"
#include "shard/units/options.h"
#include "shard/units/unit_choice.h"

namespace fsdp::shard {

/// A stage with at least this many parameters that no unit inside it holds becomes a unit (FairScale's
/// default_auto_wrap_policy, PyTorch's size_based_auto_wrap_policy).
WrapPolicy threshold_policy(int64_t min_num_params);

/// A stage whose Stage::type_name() is one of these becomes a unit (PyTorch's transformer_auto_wrap_policy).
/// The types are not checked against a model.
WrapPolicy stage_type_policy(std::vector<std::string> types);

/// A stage becomes a unit when one of the policies, called in order, returns true. Throws Error(kUsage) for
/// an empty policy.
WrapPolicy any_of(std::vector<WrapPolicy> policies);

/// The modules and parameters of a model as lists: an outline of names and shapes, and the objects of its
/// entries.
struct ModelTree {
  nn::ModelOutline outline;
  std::vector<nn::Hookable*> modules;  ///< module of each node; null for one whose calls no hook can see
  std::vector<at::Tensor> tensors;     ///< tensor of each parameter
};

/// Lists the modules and parameters of `root`. `parts`: ShardOptions::parts.
ModelTree make_model_tree(torch::nn::Module& root, const std::vector<nn::ParameterPart>& parts = {});

/// Returns the options that need modules, for choose_units() on the tree's outline. The result refers to both
/// arguments.
UnitDecisions unit_decisions(const ModelTree& tree, const ShardOptions& options);

/// A stage that becomes a unit, with the parameters whose nearest enclosing unit it is.
struct UnitPlan {
  std::string name;  ///< dotted path of the stage; "root" for the outermost
  nn::Hookable* module = nullptr;
  std::vector<NamedParameter> parameters;
  UnitOptions options;
};

/// Plans the units of the model: not collective, and the same on every rank with the same model and options.
/// The options must be free of conflicts (shard/units/option_conflicts.h).
///
/// The root's plan comes first, even if other units hold all parameters. It is followed, where they are not
/// empty, by plans of stage `root` for the parameters matched by
///   "root.replicated"          options.replicated_parameters,
///   "root.float32"             options.mixed_precision.keep_float32,
///   "root.replicated.float32"  both,
/// and for parts that several ranks of the mesh's axis model hold, before these endings,
///   "root.held_by_2_model_ranks"      parts whose gradient each holder has,
///   "root.summed_over_2_model_ranks"  parts whose gradient is the sum of the holders' gradients.
/// These parameters count for no other unit. Such parameters of a unit with options of its own form units of
/// the root stage in the same way, with these options: "layers.0.replicated". With fsdp.layout =
/// "per_parameter", parameters that the dimension policy leaves whole are replicated too. keep_float32 has no
/// effect when param_dtype, reduce_dtype and param_storage are float32. The other units follow in the order
/// of the modules, none of them empty.
///
/// The automatic choice is FairScale's recursive one (fairscale/nn/wrap/auto_wrap.py), children first: the
/// policy decides for each stage with parameters that no unit inside it holds, unless its type is in
/// options.exclude_stages or an enclosing stage's type is in options.leaf_stages. (FairScale's
/// force_leaf_modules never become units themselves: name the type in exclude_stages as well.) Remaining
/// parameters go to the nearest enclosing unit. A parameter that several stages share belongs to the
/// innermost unit around all its places, so tied weights are always in one unit.
///
/// With options.units a stage of any type may be a unit. Each must be inside `root`, at one place, be given
/// once and have parameters that no unit inside it holds, and all places of a tied parameter must belong to
/// one unit.
///
/// The rules for options.wrapped are those for options.units, in addition to the other choices; its options
/// must be free of conflicts in each unit.
///
/// Throws Error(kUsage) for units that break these rules, for a type in wrap_stages, leaf_stages or
/// exclude_stages (except the default's) that no stage has, for a pattern that matches no parameter, and for
/// a pattern in keep_after_forward that matches no unit.
std::vector<UnitPlan> plan_units(torch::nn::Module& root, const ShardOptions& options);

}  // namespace fsdp::shard
