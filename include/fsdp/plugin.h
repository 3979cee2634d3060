#pragma once

/// \file
/// Plug-ins: shared libraries that add models, losses, objectives of preferences, optimizers, learning-rate
/// schedules, data sets and a section of config keys to fsdp-train, fsdp-plan and fsdp-generate. run.plugins
/// or --plugin loads them. fsdp_add_plugin() of the CMake package builds one; examples/plugin has one of each
/// but an objective.
///
/// Collective: nothing. The plug-in's function is called on every rank before any communication. All ranks
/// call a model, loss or optimizer in the same way; none of these communicates.
///
/// Errors: Error(kUsage) for a name that is taken. Exceptions of a plug-in end the program as the library's
/// own errors do: an Error with its message and exit code.
///
/// Lifetime: a plug-in is never unloaded; what it registers lives until the program ends.
///
/// \code{.cpp}
/// // Mean squared error of the probability of the target: [training] loss = "brier", [scores] scale = 2.0
/// at::Tensor brier(const at::Tensor& logits, const at::Tensor& targets, const fsdp::PluginValues& values) {
///   const at::Tensor counts = targets.ne(-100);
///   const at::Tensor p = logits.to(at::kFloat).softmax(-1);
///   const at::Tensor of_target = p.gather(-1, targets.clamp_min(0).unsqueeze(-1)).squeeze(-1);
///   const at::Tensor errors = (1 - of_target).square().masked_fill(~counts, 0);
///   return values.get<double>("scores.scale") * errors.sum() / counts.sum().clamp_min(1);
/// }
/// void add_to(fsdp::Registrar& registrar) {
///   registrar.add_key("scale", 1.0, "factor of the loss", fsdp::above(0));
///   registrar.add_loss("brier", brier);
/// }
/// // FSDP_PLUGIN(scores, add_to) at the end of the file, outside all namespaces
/// \endcode

#include "model/nn/parameter.h"
#include "setup/plugin/plugin.h"

namespace fsdp {

using config::above;
using config::at_least;
using config::between;
using config::Constraint;
using config::non_empty;
using config::one_of;
using data::kIgnoredTarget;
using data::OpenSamples;
using data::Samples;
using data::SamplesRequest;
using nn::AddedCrossEntropy;
using nn::chosen_and_rejected;
using nn::CompletionScores;
using nn::empty_parameter;
using nn::LossFunction;
using nn::ModelKind;
using nn::Objective;
using nn::ObjectiveRows;
using nn::PreferenceLoss;
using nn::PreferenceOptions;
using optim::OptimizerFactory;
using optim::OptimizerTraits;
using optim::ScheduleMoment;
using optim::ScheduleShape;
using optim::StateKind;
using plugin::Registrar;
using util::PluginValue;
using util::PluginValues;

}  // namespace fsdp
