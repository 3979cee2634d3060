#pragma once

// The values of training.objective: what training compares. The formulas of preferences are in
// model/nn/preferences.h.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/util/enum_names.h"
#include "base/util/plugin_values.h"
#include "base/util/registry.h"

namespace at {
class Tensor;
}

namespace fsdp::nn {

/// The source of the reference's log-probabilities.
enum class ReferenceSource {
  kAuto,    ///< kBase with adapters and without reference_model, otherwise kModel
  kBase,    ///< the model without its adapters
  kModel,   ///< a second model, frozen and sharded as the first
  kStored,  ///< files beside the data (data/tokens/stored_reference.h)
};

/// The source of a teacher's distributions.
enum class TeacherSource {
  kModel,   ///< a second model, frozen and sharded as the first
  kStored,  ///< files beside the data (data/tokens/stored_teacher.h)
};
constexpr auto enum_names(TeacherSource) {
  return std::to_array<util::EnumName<TeacherSource>>(
      {{TeacherSource::kModel, "model"}, {TeacherSource::kStored, "stored"}});
}

/// Options of the objective distill: [distillation].
struct DistillationOptions {
  util::Named<TeacherSource> teacher = TeacherSource::kModel;
  std::string teacher_model = {};  ///< weights of the teacher
  double beta = 0.5;               ///< kernels::DivergenceTerms
  double temperature = 1.0;
  double alpha = 1.0;
  int64_t top_k = 0;  ///< likeliest tokens of the teacher that are compared; 0: all
};
constexpr auto enum_names(ReferenceSource) {
  return std::to_array<util::EnumName<ReferenceSource>>({{ReferenceSource::kAuto, "auto"},
                                                         {ReferenceSource::kBase, "base"},
                                                         {ReferenceSource::kModel, "model"},
                                                         {ReferenceSource::kStored, "stored"}});
}

/// Options of objectives of preferences: [preference].
struct PreferenceOptions {
  double beta = 0.1;               ///< strength of the pull towards the reference
  double label_smoothing = 0;      ///< assumed share of pairs whose labels are exchanged
  bool length_normalised = false;  ///< scores are means over a completion's tokens
  double simpo_gamma = 0.5;        ///< margin that SimPO asks for
  double cpo_alpha = 1.0;          ///< weight of the cross entropy of chosen completions
  double desirable_weight = 1.0;   ///< KTO's weights of the losses of rows of each label
  double undesirable_weight = 1.0;
  int64_t exchanged_rows = 0;  ///< data::PreferenceOptions::exchanged_rows
  util::Named<ReferenceSource> reference = ReferenceSource::kAuto;
  std::string reference_model = {};  ///< weights of kModel; empty: those of model.init_from
};

/// Scores of the completions of one micro-batch. D: documents; with pairs the even ones are chosen, and each
/// is followed by the rejected one.
struct CompletionScores;
/// Returns the losses of the micro-batch's samples: [D / 2] with pairs, otherwise [D].
using PreferenceLoss =
    std::function<at::Tensor(const CompletionScores&, const PreferenceOptions&, const util::PluginValues&)>;

/// The rows that an objective learns from.
enum class ObjectiveRows { kTexts, kPairs, kSingle };

/// The cross entropy that is added to the losses of preferences: that of preferred documents.
enum class AddedCrossEntropy {
  kNone,
  kOfCompletions,  ///< weighted by cpo_alpha
  kOfDocuments,    ///< with weight 1, prompts included
};
/// A value of training.objective.
struct Objective {
  ObjectiveRows rows = ObjectiveRows::kTexts;
  bool has_teacher = false;    ///< whether a teacher's distributions are learnt
  bool has_reference = false;  ///< whether scores are relative to those of a reference
  bool averages = false;       ///< whether log-probabilities are means over a completion's tokens
  AddedCrossEntropy cross_entropy = AddedCrossEntropy::kNone;
  PreferenceLoss loss = nullptr;  ///< null: built in
};

/// The objective that is training.loss alone.
inline constexpr const char* kLanguageModel = "language_model";

util::Registry<Objective>& objectives();

}  // namespace fsdp::nn
