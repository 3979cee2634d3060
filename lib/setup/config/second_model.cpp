#include "setup/config/second_model.h"

#include "base/util/error.h"
#include "model/families/objectives.h"
#include "setup/config/checks.h"
#include "setup/config/model_description.h"

namespace fsdp::config {
namespace {

Config frozen(const Config& config, const std::string& weights) {
  Config frozen = config;
  frozen.training.objective = nn::kLanguageModel;
  frozen.lora = {};
  frozen.checkpoint.init_from.clear();
  frozen.activation_checkpointing = {};
  frozen.model.init_from = weights;
  return frozen;
}

Config teacher(const Config& config) {
  const std::string& weights = config.distillation.teacher_model;
  Config teacher = frozen(config, weights);
  teacher.training.float8 = Float8Recipe::kNone;
  if (const auto described = checkpoint::described_model(weights)) {
    const nn::ModelOptions& own = config.model;
    teacher.model = model_of(*described);
    teacher.model.init_from = weights;
    teacher.model.matmul = own.matmul;
    teacher.model.fused_kernels = own.fused_kernels;
    teacher.model.logits_mib = own.logits_mib;
  }
  if (teacher.model.vocab_size != config.model.vocab_size) {
    fail(ErrorKind::kUsage,
         "distillation.teacher_model must have the vocabulary of the model, whose model.vocab_size is ",
         config.model.vocab_size, ", but ", weights, " has ", teacher.model.vocab_size,
         " tokens; choose a teacher with the same tokenizer");
  }
  return teacher;
}

}  // namespace

std::optional<SecondModel> second_model(const Config& config) {
  const nn::Objective& objective = nn::objectives().get(config.training.objective, "training.objective");
  if (objective.has_teacher && config.distillation.teacher == nn::TeacherSource::kModel) {
    return SecondModel{teacher(config), "teacher"};
  }
  if (!objective.has_reference) return std::nullopt;
  if (reference_source(config) != nn::ReferenceSource::kModel) return std::nullopt;
  const std::string& named = config.preference.reference_model;
  return SecondModel{frozen(config, named.empty() ? config.model.init_from : named), "reference"};
}

}  // namespace fsdp::config
