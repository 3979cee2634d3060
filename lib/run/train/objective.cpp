#include "run/train/objective.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/util/error.h"
#include "base/util/log.h"
#include "model/kernels/sample_sums.h"
#include "model/nn/experts.h"
#include "run/train/run_parts.h"
#include "shard/engine/engine.h"

namespace fsdp::train {
namespace {

/// TRL's names of metrics.
constexpr const char* kNames[] = {
    "rewards/chosen", "rewards/rejected", "rewards/accuracies", "rewards/margins",
    "logps/chosen",   "logps/rejected",   "nll_loss",           "kl"};

nn::LossOptions with_batch(const nn::LossOptions& given, const data::Batch& batch) {
  nn::LossOptions how = given;
  how.documents = batch.document_starts;
  how.is_token = batch.is_token;
  if (how.dropout) how.dropout->first_row = batch.first_row;
  return how;
}

}  // namespace

at::Tensor LanguageObjective::loss(nn::Stage& model, const MicroBatch& micro_batch,
                                   const nn::LossOptions& given) {
  const data::Batch& batch = micro_batch.batch;
  const at::Tensor loss = nn::loss_of(model, batch.inputs, batch.targets, with_batch(given, batch));
  return micro_batch.divisor == 1 ? loss : loss / micro_batch.divisor;
}

at::Tensor DistillationObjective::loss(nn::Stage& model, const MicroBatch& micro_batch,
                                       const nn::LossOptions& given) {
  const data::Batch& batch = micro_batch.batch;
  const nn::LossOptions how = with_batch(given, batch);
  auto lesson = std::make_shared<nn::Lesson>();
  lesson->terms = {.beta = options_.beta, .temperature = options_.temperature, .alpha = options_.alpha};
  if (teacher_) {
    lesson->teacher =
        nn::teacher_rows(*teacher_->model, batch.inputs, how, options_.top_k, options_.temperature);
  } else {
    lesson->teacher = {.ids = batch.teacher_ids.flatten(0, 1),
                       .log_probs = batch.teacher_log_probs.flatten(0, 1)};
  }
  std::shared_ptr<nn::ExpertBalance> balance;
  const at::Tensor losses =
      nn::losses_of_lesson(model, batch.inputs, batch.targets, how, std::move(lesson), &balance);
  if (kernels::SampleSums* samples = kernels::SampleSums::current()) {
    const at::Tensor of_samples = losses.to(at::kDouble).reshape({samples->samples(), -1}).sum(1);
    const at::Tensor values = of_samples.detach();
    samples->losses.assign(values.const_data_ptr<double>(), values.const_data_ptr<double>() + values.numel());
    return of_samples.sum() / samples->counted();
  }
  const auto counted = static_cast<double>(std::max<int64_t>(batch.counted, 1));
  const at::Tensor mean = losses.sum(at::kDouble) / counted;
  return (balance ? balance->added_to(mean) : mean) / micro_batch.divisor;
}

PreferenceObjective::PreferenceObjective(const config::Config& config, comm::Mesh mesh,
                                         std::shared_ptr<const ShardedModel> reference)
    : objective_(nn::objectives().get(config.training.objective, "training.objective")),
      name_(config.training.objective),
      options_(config.preference),
      plugin_values_(config.plugin_values),
      mesh_(std::move(mesh)),
      reference_(std::move(reference)) {}

at::Tensor PreferenceObjective::over_row(const at::Tensor& part) const {
  const int ranks = mesh_.shape().context;
  if (ranks == 1) return part;
  const at::Tensor own = part.detach(), total = own.clone();
  mesh_.context()->all_reduce(total, comm::ReduceOp::kSum, {.unit = "scores of answers"})->wait();
  return part.requires_grad() ? total + (part - own) * ranks : total;
}

at::Tensor PreferenceObjective::scores(nn::Stage& model, const data::Batch& batch,
                                       const nn::LossOptions& given, bool is_reference) {
  nn::LossOptions how = with_batch(given, batch);
  if (!at::GradMode::is_enabled()) how.dropout.reset();
  const at::Tensor log_probs = nn::log_probs_of_targets(model, batch.inputs, batch.targets, how, is_reference,
                                                        at::GradMode::is_enabled() ? &balance_ : nullptr)
                                   .to(at::kDouble)
                                   .flatten();
  const data::ScoredCompletions& scored = *batch.scored;
  const at::Tensor of_targets = scored.of_targets.flatten();
  const at::Tensor documents = at::arange(scored.preferred.numel(), of_targets.options());
  const at::Tensor belongs = of_targets.unsqueeze(0) == documents.unsqueeze(1);  // [documents, targets]
  if (objective_.cross_entropy != nn::AddedCrossEntropy::kNone && !is_reference) {
    // The other targets that count are prompts of preferred documents.
    const at::Tensor of_others =
        belongs.logical_and(scored.preferred.to(belongs.device()).logical_not().unsqueeze(1));
    cross_entropy_ = over_row(-log_probs.masked_fill(of_others.any(0), 0).sum());
  }
  return over_row(at::where(belongs, log_probs.unsqueeze(0), at::zeros({}, log_probs.options())).sum(1));
}

at::Tensor PreferenceObjective::references(nn::Stage& model, const data::Batch& batch,
                                           const nn::LossOptions& how) {
  if (batch.scored->references.defined()) return batch.scored->references.to(batch.inputs.device());
  if (options_.reference == nn::ReferenceSource::kStored) {
    // Other ranks have rows and no forward pass here, so this rank must not have one either.
    const int64_t documents = batch.scored->preferred.numel();
    FSDP_CHECK(documents == 0, "a row without a reference");
    return at::empty({documents}, batch.inputs.options().dtype(at::kDouble));
  }
  const at::NoGradGuard no_grad;
  return scores(reference_ ? *reference_->model : model, batch, how, /*is_reference=*/true);
}

at::Tensor PreferenceObjective::divergence(nn::Stage& model, const data::Batch& exchanged,
                                           const nn::LossOptions& how) {
  const at::NoGradGuard no_grad;
  const at::Tensor of_reference = references(model, exchanged, how);
  const at::Tensor difference = scores(model, exchanged, how, /*is_reference=*/false) - of_reference;
  const at::Tensor sums = at::stack(
      {difference.sum(), at::full({}, static_cast<double>(difference.numel()), difference.options())});
  mesh_.world()->all_reduce(sums, comm::ReduceOp::kSum, {.unit = "divergence from the reference"})->wait();
  return (sums[0] / sums[1].clamp_min(1)).clamp_min(0);
}

at::Tensor PreferenceObjective::loss(nn::Stage& model, const MicroBatch& micro_batch,
                                     const nn::LossOptions& how) {
  const LossSums of = sums(model, micro_batch.batch, how);
  const auto balance = std::exchange(balance_, nullptr);
  if (kernels::SampleSums* samples = kernels::SampleSums::current()) {
    // The batch is one sample, whose loss is divided by the number of pairs of the step.
    at::Tensor sum = of.of_samples;
    if (of.of_targets.defined()) {
      const double targets = micro_batch.targets_divisor * mesh_.world()->world_size();
      sum = sum + of.of_targets * (samples->counted() / targets);
    }
    samples->losses = {sum.item<double>()};
    return sum / samples->counted();
  }
  const auto samples = static_cast<double>(std::max<int64_t>(micro_batch.batch.counted, 1));
  const at::Tensor mean = of.of_samples / samples;
  const at::Tensor loss = (balance ? balance->added_to(mean) : mean) / micro_batch.divisor;
  return of.of_targets.defined() ? loss + of.of_targets / micro_batch.targets_divisor : loss;
}

LossSums PreferenceObjective::sums(nn::Stage& model, const data::Batch& batch, const nn::LossOptions& how) {
  nn::CompletionScores of;
  if (objective_.rows == nn::ObjectiveRows::kSingle) of.divergence = divergence(model, *batch.exchanged, how);
  if (objective_.has_reference) of.references = references(model, batch, how);
  of.log_probs = scores(model, batch, how, /*is_reference=*/false);
  const at::Tensor cross_entropy = std::exchange(cross_entropy_, at::Tensor());
  const int64_t documents = of.log_probs.numel();
  // A rank without samples takes part for the others.
  if (documents == 0) return {.of_samples = of.log_probs.sum(), .of_targets = cross_entropy};
  const at::Tensor of_targets = batch.scored->of_targets.flatten();
  of.preferred = batch.scored->preferred.to(of_targets.device());
  of.tokens = over_row((of_targets.unsqueeze(0) == at::arange(documents, of_targets.options()).unsqueeze(1))
                           .sum(1)
                           .to(at::kDouble));
  if (objective_.averages) of.log_probs = of.log_probs / of.tokens;
  for (const nn::PreferenceMetric& metric : nn::preference_metrics(objective_, of, options_)) {
    add_metric(metric.name, metric.sum, metric.count);
  }
  const auto number = [&](int64_t count) {
    return at::full({}, static_cast<double>(count), of.tokens.options());
  };
  if (of.divergence.defined()) add_metric("kl", of.divergence, number(1));
  LossSums sums{.of_samples = nn::preference_losses(name_, of, options_, plugin_values_).sum()};
  if (cross_entropy.defined()) {
    add_metric("nll_loss", cross_entropy.detach(), number(batch.preferred_targets));
    const bool is_weighted = objective_.cross_entropy == nn::AddedCrossEntropy::kOfCompletions;
    sums.of_targets = is_weighted ? cross_entropy * options_.cpo_alpha : cross_entropy;
  }
  return sums;
}

void PreferenceObjective::add_metric(const std::string& name, const at::Tensor& sum,
                                     const at::Tensor& count) {
  const at::NoGradGuard no_grad;
  at::Tensor& total = metrics_[name];
  const at::Tensor one = (at::stack({sum, count}) / kMetricUnit).round().to(at::kLong);
  total = total.defined() ? total + one : one;
}

std::vector<std::string> PreferenceObjective::metric_names() const {
  return {std::begin(kNames), std::end(kNames)};
}

NamedNumbers PreferenceObjective::metrics_of(const std::function<void()>& run) {
  std::map<std::string, at::Tensor> others = std::exchange(metrics_, {});
  run();
  NamedNumbers numbers = take_metrics();
  metrics_ = std::move(others);
  return numbers;
}

NamedNumbers PreferenceObjective::take_metrics() {
  const at::NoGradGuard no_grad;
  const at::Tensor sums = at::zeros({std::ssize(kNames), 2}, at::kLong);
  for (int64_t i = 0; i < sums.size(0); ++i) {
    const auto found = metrics_.find(kNames[i]);
    if (found != metrics_.end()) sums[i].copy_(found->second);
  }
  metrics_.clear();
  mesh_.world()->all_reduce(sums, comm::ReduceOp::kSum, {.unit = "metrics of answers"})->wait();
  NamedNumbers numbers;
  std::map<std::string, double> means;
  for (int64_t i = 0; i < sums.size(0); ++i) {
    const auto sum = static_cast<double>(sums[i][0].item<int64_t>()),
               count = static_cast<double>(sums[i][1].item<int64_t>());
    if (count > 0) numbers.emplace_back(kNames[i], means[kNames[i]] = sum / count);
  }
  if (objective_.rows == nn::ObjectiveRows::kSingle && means.contains("rewards/chosen") &&
      means.contains("rewards/rejected")) {
    numbers.emplace_back("rewards/margins", means["rewards/chosen"] - means["rewards/rejected"]);
  }
  return numbers;
}

std::shared_ptr<const ShardedModel> build_second_model(const config::SecondModel& second,
                                                       const comm::Mesh& mesh,
                                                       shard::ParameterSource* weights) {
  if (mesh.world()->rank() == 0) {
    util::log_info(concat(second.role, ": a second model, of the weights ", second.config.model.init_from));
  }
  return std::make_shared<ShardedModel>(
      build_sharded_model(second.config, mesh, /*trace=*/nullptr, {.weights = weights, .frozen = true}));
}

std::shared_ptr<Objective> make_objective(const config::Config& config, const comm::Mesh& mesh,
                                          shard::ParameterSource* weights) {
  const nn::Objective& objective = nn::objectives().get(config.training.objective, "training.objective");
  std::optional<config::SecondModel> second;
  comm::agree(*mesh.world(), "second model", [&] { second = config::second_model(config); });
  const auto frozen = second ? build_second_model(*second, mesh, weights) : nullptr;
  if (objective.has_teacher) return std::make_shared<DistillationObjective>(config.distillation, frozen);
  if (objective.rows == nn::ObjectiveRows::kTexts) return std::make_shared<LanguageObjective>();
  return std::make_shared<PreferenceObjective>(config, mesh, frozen);
}

}  // namespace fsdp::train
