// Conditions of training.objective, and what it makes of the data.

#include "base/util/error.h"
#include "data/options/datasets.h"
#include "model/families/objectives.h"
#include "setup/config/checks.h"
#include "setup/config/conflicts.h"

namespace fsdp::config {
namespace {

/// Whether the validation reports what best_metric names.
void check_best_metric(const Config& config, Conflicts& conflicts) {
  const auto metric = config.evaluation.best_metric.value();
  const bool of_rewards =
      metric == BestMetric::kValidationRewardAccuracies || metric == BestMetric::kValidationRewardMargins;
  const bool of_texts = metric == BestMetric::kValidationPerplexity ||
                        metric == BestMetric::kValidationBitsPerByte ||
                        metric == BestMetric::kValidationAccuracy;
  const data::PreferenceRows rows = config.data.preference.rows;
  const bool fits =
      of_rewards ? rows == data::PreferenceRows::kPairs : !of_texts || rows == data::PreferenceRows::kNone;
  conflicts.unless(fits, {"evaluation.best_metric", "training.objective"},
                   "must be a metric that validations with training.objective = \"",
                   config.training.objective, "\" report, but is ", config.evaluation.best_metric,
                   "; validation_loss is one");
}

void check_preferences(const Config& config, Conflicts& conflicts) {
  check_best_metric(config, conflicts);
  if (!config.data.preference.is_on()) return;
  const auto unless = [&](bool condition, const std::string& key, const std::string& message) {
    conflicts.unless(condition, {key, "training.objective"},
                     concat(message, " with training.objective = \"", config.training.objective,
                            "\"; leave one of the two out"));
  };
  unless(config.data.dataset == data::kTokenFiles, "data.dataset", "must be \"token_files\"");
  unless(config.data.documents == data::DocumentTreatment::kJoin, "data.documents",
         "has no effect, because answers are read document by document,");
  unless(config.data.train_on == data::TrainOn::kAll, "data.train_on",
         "has no effect, because answers alone are scored,");
  unless(!config.training.cuda_graphs, "training.cuda_graphs",
         "needs batches of one shape, and cannot be on");
  unless(config.fsdp.front != Front::kSpmd, "fsdp.front", "must be \"fully_shard\"");
  unless(!config.evaluation.accuracy, "evaluation.accuracy", "counts tokens of texts, and cannot be on");
  unless(
      config.training.reproducible != Reproducible::kWorldSize ||
          config.data.preference.rows == data::PreferenceRows::kPairs,
      "training.reproducible",
      "must be \"run\", because the divergence from the reference is a mean over all ranks' micro-batches,");
  conflicts.unless(config.training.objective != "exo_pair" || config.preference.label_smoothing > 0,
                   {"preference.label_smoothing", "training.objective"},
                   "must be above 0 with training.objective = \"exo_pair\", but is 0; 1e-3 is usual");
  if (!nn::objectives().get(config.training.objective, "training.objective").has_reference) return;
  const bool has_adapters = config.lora.is_on();
  conflicts.unless(
      config.preference.reference != nn::ReferenceSource::kBase || has_adapters,
      {"preference.reference", "lora.rank"},
      "must be \"model\" or \"stored\" without adapters, but is \"base\"; set lora.rank, or choose another");
  const nn::ReferenceSource source = reference_source(config);
  const bool is_chosen = config.preference.reference != nn::ReferenceSource::kAuto;
  conflicts.unless(
      is_chosen || source != nn::ReferenceSource::kBase || config.lora.init_from.empty(),
      {"preference.reference", "lora.init_from"},
      "must be given with lora.init_from, because the base without these adapters is not the model that "
      "training starts from, but is \"auto\"; set \"base\" for the base, or \"model\" and "
      "preference.reference_model, weights into which the adapters are merged");
  conflicts.unless(
      source != nn::ReferenceSource::kModel || !config.preference.reference_model.empty() ||
          !config.model.init_from.empty(),
      {"preference.reference_model", "model.init_from"},
      "must name the weights of the reference, because model.init_from is empty; set one of the two, or "
      "an objective without a reference: orpo, simpo or cpo");
}

void check_distillation(const Config& config, Conflicts& conflicts) {
  const nn::Objective* objective = nn::objectives().find(config.training.objective);
  if (objective == nullptr || !objective->has_teacher) return;
  const auto unless = [&](bool condition, const std::string& key, const std::string& message) {
    conflicts.unless(condition, {key, "training.objective"},
                     concat(message, " with training.objective = \"", config.training.objective,
                            "\"; leave one of the two out"));
  };
  unless(config.mesh.model == 1, "mesh.model",
         "must be 1, because distributions over parts of a vocabulary are not compared,");
  unless(!config.training.cuda_graphs, "training.cuda_graphs", "cannot be on");
  unless(config.fsdp.front != Front::kSpmd, "fsdp.front", "must be \"fully_shard\"");
  const nn::DistillationOptions& options = config.distillation;
  const bool is_stored = options.teacher == nn::TeacherSource::kStored;
  conflicts.unless(is_stored || !options.teacher_model.empty(),
                   {"distillation.teacher_model", "training.objective"},
                   "must name the weights of the teacher, but is empty; set it");
  conflicts.unless(!is_stored || options.top_k > 0, {"distillation.top_k", "distillation.teacher"},
                   "must be above 0 with distillation.teacher = \"stored\", since files have the likeliest "
                   "tokens alone, but is 0; 32 is usual");
  conflicts.unless(!is_stored || config.mesh.context == 1, {"distillation.teacher", "mesh.context"},
                   "must be \"model\" with mesh.context, but is \"stored\"; leave one of the two out");
  conflicts.unless(!is_stored || config.data.dataset == data::kTokenFiles,
                   {"distillation.teacher", "data.dataset"},
                   "must be \"model\" with another data.dataset than token_files, but is \"stored\"; leave "
                   "one of the two out");
  conflicts.unless(options.top_k < config.model.vocab_size, {"distillation.top_k", "model.vocab_size"},
                   "must be less than model.vocab_size = ", config.model.vocab_size, ", but is ",
                   options.top_k, "; set it to 0 to compare all tokens");
}

}  // namespace

data::TeacherOptions stored_teacher_of(const Config& config) {
  const nn::Objective* objective = nn::objectives().find(config.training.objective);
  const bool is_stored = config.distillation.teacher == nn::TeacherSource::kStored;
  if (objective == nullptr || !objective->has_teacher || !is_stored) return {};
  return {.top_k = config.distillation.top_k, .temperature = config.distillation.temperature};
}

data::PreferenceOptions rows_of_preferences(const Config& config) {
  const nn::Objective* objective = nn::objectives().find(config.training.objective);
  if (objective == nullptr || objective->rows == nn::ObjectiveRows::kTexts) return {};
  return {.rows = objective->rows == nn::ObjectiveRows::kPairs ? data::PreferenceRows::kPairs
                                                               : data::PreferenceRows::kSingle,
          .prompts_count = objective->cross_entropy == nn::AddedCrossEntropy::kOfDocuments,
          .stored_reference =
              objective->has_reference && config.preference.reference == nn::ReferenceSource::kStored,
          .exchanged_rows = config.preference.exchanged_rows};
}

nn::ReferenceSource reference_source(const Config& config) {
  if (config.preference.reference != nn::ReferenceSource::kAuto) return config.preference.reference.value();
  const bool has_base = config.lora.is_on() && config.preference.reference_model.empty();
  return has_base ? nn::ReferenceSource::kBase : nn::ReferenceSource::kModel;
}

std::vector<Conflict> find_conflicts_of_objective(const Config& config) {
  Conflicts conflicts;
  check_preferences(config, conflicts);
  check_distillation(config, conflicts);
  return std::move(conflicts.found);
}

}  // namespace fsdp::config
