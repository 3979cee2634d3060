#include "run/train/evaluate.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>
#include <numbers>
#include <numeric>
#include <utility>

#include "base/util/error.h"
#include "base/util/log.h"
#include "base/util/text.h"
#include "comm/api/mesh.h"
#include "model/kernels/sample_sums.h"
#include "model/nn/loss.h"
#include "run/train/metrics.h"
#include "run/train/run_parts.h"
#include "setup/config/checks.h"

namespace fsdp::train {

std::optional<double> Validation::bits_per_byte() const {
  if (!bytes || *bytes == 0) return std::nullopt;
  return loss * static_cast<double>(tokens) / std::numbers::ln2 / static_cast<double>(*bytes);
}

namespace {

const char* const kRemedyForRows =
    "raise data.sequence_length or evaluation.max_samples, choose other files, or check data.train_on";

/// Returns the mean loss of a batch; with a cut, of this rank's part of its rows. Adds the number of targets
/// with the highest score to `correct`. If that is null, the scores need not exist all at once.
at::Tensor loss_of_batch(nn::Stage& model, const data::Batch& batch,
                         const std::shared_ptr<const parallel::CutSequence>& cut, double* correct) {
  const at::Tensor &inputs = batch.inputs, &targets = batch.targets;
  if (correct == nullptr) {
    return nn::loss_of(model, inputs, targets, {.documents = batch.document_starts, .cut = cut});
  }
  nn::StageContext context;
  context.documents = batch.document_starts;
  context.cut = cut;
  const at::Tensor scores = model.forward(inputs, context);
  // Targets that do not count are not ids, so they equal no score's index.
  *correct += scores.argmax(-1).eq(targets).sum().item<double>();
  return nn::next_token_loss(scores, targets);
}

/// The batches of a validation by number, with the bytes of their text unless `bytes` is null. `on_reading`:
/// as in data::PrefetchOptions, called before the bytes are counted.
class NumberedBatches final : public data::BatchSource {
 public:
  NumberedBatches(const data::ValidationLoader& loader, const data::TokenBytes* bytes,
                  std::function<void(data::Batch&)> on_reading)
      : loader_(loader), bytes_(bytes), on_reading_(std::move(on_reading)) {}

  data::Batch batch(int64_t index, int64_t /*micro_batch*/) const override {
    data::Batch batch = loader_.batch(index);
    if (on_reading_) on_reading_(batch);
    if (bytes_ != nullptr && batch.counted > 0) {
      batch.text_bytes = bytes_->count(batch.targets.const_data_ptr<int64_t>(), batch.targets.numel());
    }
    return batch;
  }

 private:
  const data::ValidationLoader& loader_;
  const data::TokenBytes* bytes_;
  std::function<void(data::Batch&)> on_reading_;
};

}  // namespace

namespace {

/// Sums that all ranks add up.
enum Sum { kLosses, kTokens, kBytes, kForeignBatches, kCorrect, kAdded, kAddedTargets, kSums };

/// Adds the loss of a batch. Returns whether it counts.
bool add_loss(nn::Stage& model, const data::Batch& batch, const data::ValidationLoader& loader, int64_t index,
              const ValidationHooks& hooks, double* sums) {
  // A batch in which nothing counts still runs: its forward is collective.
  std::optional<kernels::SampleSums> samples;
  if (hooks.objective != nullptr) {
    if (hooks.by_sample) samples.emplace(1, 1.0);  // rows are packed
    const LossSums of = hooks.objective->sums(model, batch, {.cut = hooks.cut});
    // Sums of such multiples are exact, and so the same in any order.
    const auto rounded = [](const at::Tensor& x) {
      return std::round(x.item<double>() / kMetricUnit) * kMetricUnit;
    };
    sums[kLosses] += rounded(of.of_samples);
    if (of.of_targets.defined()) sums[kAdded] += rounded(of.of_targets);
    sums[kAddedTargets] += static_cast<double>(batch.preferred_targets);
    return batch.counted > 0;
  }
  if (hooks.by_sample) samples.emplace(batch.targets.size(0), 1.0);
  const at::Tensor loss = loss_of_batch(model, batch, hooks.cut, hooks.accuracy ? &sums[kCorrect] : nullptr);
  if (batch.counted == 0) return false;
  if (samples) {
    std::ranges::copy(samples->losses, sums + kSums + loader.first_sample(index));
  } else {
    sums[kLosses] += loss.item<double>() * static_cast<double>(batch.counted);
  }
  return true;
}

}  // namespace

std::optional<Validation> validate(nn::Stage& model, const data::ValidationLoader& loader,
                                   comm::Communicator& communicator, const ValidationHooks& given) {
  at::NoGradGuard no_grad;
  ValidationHooks hooks = given;
  // Losses of tokens are computed here.
  if (hooks.objective != nullptr && hooks.objective->metric_names().empty()) hooks.objective = nullptr;
  const bool is_of_tokens = hooks.objective == nullptr;
  const int64_t places = hooks.by_sample ? loader.num_rows() : 0;
  at::Tensor totals = at::zeros({kSums + places}, at::kDouble);
  double* sums = totals.data_ptr<double>();
  data::PrefetchOptions prefetch = hooks.prefetch;
  const NumberedBatches numbered(loader, is_of_tokens ? hooks.bytes : nullptr,
                                 std::exchange(prefetch.on_reading, nullptr));
  prefetch.device = communicator.device();
  prefetch.end = loader.num_batches();
  const data::PrefetchingBatches batches(numbered, /*samples_per_micro_step=*/1, prefetch);
  bool is_stopped = false;
  const auto run = [&] {
    for (int64_t index = 0; index < loader.num_batches(); ++index) {
      if (hooks.stop_requested && hooks.stop_requested()) {
        is_stopped = true;
        return;
      }
      const data::Batch batch = batches.batch(index, 0);
      if (!add_loss(model, batch, loader, index, hooks, sums)) continue;
      sums[kTokens] += static_cast<double>(batch.counted);
      if (hooks.bytes == nullptr) continue;
      batch.text_bytes ? sums[kBytes] += static_cast<double>(*batch.text_bytes) : sums[kForeignBatches] += 1;
    }
  };
  NamedNumbers of_objective;
  is_of_tokens ? run() : void(of_objective = hooks.objective->metrics_of(run));
  if (is_stopped) return std::nullopt;
  communicator.check();
  communicator.all_reduce(totals, comm::ReduceOp::kSum, {.unit = "validation loss"})->wait();
  // Each loss is known to one rank, and 0 on the others.
  sums[kLosses] = std::accumulate(sums + kSums, sums + kSums + places, sums[kLosses]);
  if (hooks.copies > 1) totals.div_(static_cast<double>(hooks.copies));
  if (sums[kTokens] == 0) {
    throw comm::AgreedError(
        ErrorKind::kData,
        concat("validation: expected targets that count, found none in ", loader.num_samples(),
               " samples from ", loader.samples().name(), " on; ", kRemedyForRows));
  }
  Validation validation{.loss = sums[kLosses] / sums[kTokens],
                        .samples = loader.num_samples(),
                        .tokens = static_cast<int64_t>(sums[kTokens]),
                        .bytes = std::nullopt,
                        .is_of_tokens = is_of_tokens,
                        .of_objective = std::move(of_objective)};
  if (sums[kAddedTargets] > 0) validation.loss += sums[kAdded] / sums[kAddedTargets];
  if (hooks.accuracy) validation.accuracy = sums[kCorrect] / sums[kTokens];
  if (is_of_tokens && hooks.bytes != nullptr && sums[kForeignBatches] == 0) {
    validation.bytes = static_cast<int64_t>(sums[kBytes]);
  }
  return validation;
}

std::string validation_text(const Validation& validation) {
  const std::optional<double> bits = validation.bits_per_byte();
  std::string numbers =
      validation.is_of_tokens ? concat(", perplexity ", util::fixed(validation.perplexity(), 2)) : "";
  for (const auto& [name, value] : validation.of_objective)
    numbers += concat(", ", name, " ", util::fixed(value, 4));
  return concat(
      "loss ", util::fixed(validation.loss, 4), numbers,
      bits ? concat(", ", util::fixed(*bits, 4), " bits per byte") : "",
      validation.accuracy ? concat(", accuracy ", util::fixed(*validation.accuracy * 100, 2), " %") : "",
      " over ", validation.samples, " samples");
}

void require_finite(const Validation& validation, const std::string& where) {
  if (std::isfinite(validation.loss)) return;
  throw comm::AgreedError(ErrorKind::kDiverged,
                          concat(where, ": expected a finite loss, found ", std::abs(validation.loss),
                                 " over ", validation.samples,
                                 " samples; the weights are not usable, or the range of "
                                 "mixed_precision.param_dtype is too small for them"));
}

std::unique_ptr<data::TokenBytes> token_bytes(const config::Config& config, bool is_first_rank) {
  try {
    return std::make_unique<data::TokenBytes>(*data::make_tokenizer(config.data.tokenizer));
  } catch (const util::Error& error) {
    if (is_first_rank) {
      util::log_warning(concat("validation will not report bits per byte: ", error.what()));
    }
    return nullptr;
  }
}

std::string evaluation_text(const Evaluation& evaluation) {
  std::string text = evaluation.validation ? validation_text(*evaluation.validation) + "\n" : "";
  for (const TaskResult& result : evaluation.tasks) text += task_text(result) + "\n";
  return text;
}

std::string evaluation_json(const Evaluation& evaluation) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (evaluation.validation) {
    json = validation_line(/*step=*/0, *evaluation.validation);
    json.erase("step");
    json["validation_samples"] = evaluation.validation->samples;
    json["validation_tokens"] = evaluation.validation->tokens;
  }
  json.update(task_numbers(evaluation.tasks));
  return json.dump(2) + "\n";
}

Evaluation evaluate(const config::Config& given, std::shared_ptr<comm::Communicator> communicator,
                    const std::filesystem::path& weights) {
  config::Config config = given;
  using enum nn::ReferenceSource;
  const auto reference = config.preference.reference.value();
  const bool has_reference =
      nn::objectives().get(config.training.objective, "training.objective").has_reference;
  if (has_reference && reference != kStored) {
    config.preference.reference = kModel;  // adapters are merged into the weights to be evaluated
    if (config.preference.reference_model.empty()) {
      fail(
          ErrorKind::kUsage,
          "preference.reference_model must name the weights that answers are compared with, "
          "since model.init_from names those to be evaluated, but is empty; add preference.reference=model and "
          "preference.reference_model=PATH");
    }
  }
  config.model.init_from = weights.string();
  config.lora = {};                       // a checkpoint's adapters are merged into its weights
  config.training.global_batch_size = 0;  // nothing is trained, so any world will do
  config.training.gradient_accumulation_steps = 1;
  std::optional<data::ValidationLoader> loader;
  std::optional<TaskScores> tasks;
  comm::agree(*communicator, "set-up", [&] {
    config::check_world(config, communicator->world_size());
    if (config.data.validation.empty() && config.evaluation.tasks.empty()) {
      fail(ErrorKind::kUsage,
           "data.validation must list the token files to evaluate on, but is empty; set it in "
           "the config or as data.validation='[\"FILE\"]', or set evaluation.tasks");
    }
    if (!config.data.validation.empty()) loader.emplace(open_validation_data(config, *communicator));
    tasks.emplace(config);
  });
  const comm::Mesh mesh(config.mesh, communicator);
  const ShardedModel sharded = build_sharded_model(config, mesh, /*trace=*/nullptr);
  Evaluation evaluation;
  if (loader) {
    const std::shared_ptr<Objective> objective = make_objective(config, mesh);
    const auto bytes = token_bytes(config, communicator->rank() == 0);
    evaluation.validation =
        validate(*sharded.model, *loader, *communicator,
                 {.bytes = bytes.get(),
                  .accuracy = config.evaluation.accuracy,
                  .prefetch = prefetch_options(config, mesh),
                  .cut = sharded.cut,
                  .objective = objective.get(),
                  .by_sample = config.training.reproducible == config::Reproducible::kWorldSize,
                  .copies = mesh.shape().model});
    require_finite(*evaluation.validation, weights.string());
  }
  evaluation.tasks = tasks->of(*sharded.model, mesh).value();
  return evaluation;
}

namespace {

double number_of(const Validation& validation, const std::string& name) {
  const auto found = std::ranges::find(validation.of_objective, name, &std::pair<std::string, double>::first);
  return found == validation.of_objective.end() ? std::numeric_limits<double>::quiet_NaN() : found->second;
}

bool higher_is_better(config::BestMetric metric) {
  using enum config::BestMetric;
  return metric == kValidationAccuracy || metric == kValidationRewardAccuracies ||
         metric == kValidationRewardMargins;
}

}  // namespace

double best_metric_value(config::BestMetric metric, const Validation& validation, double loss,
                         double grad_norm) {
  constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  using Metric = config::BestMetric;
  switch (metric) {
    case Metric::kValidationLoss:
      return validation.loss;
    case Metric::kValidationPerplexity:
      return validation.perplexity();
    case Metric::kValidationBitsPerByte:
      return validation.bits_per_byte().value_or(kUnknown);
    case Metric::kValidationAccuracy:
      return validation.accuracy.value_or(kUnknown);
    case Metric::kValidationRewardAccuracies:
      return number_of(validation, "rewards/accuracies");
    case Metric::kValidationRewardMargins:
      return number_of(validation, "rewards/margins");
    case Metric::kLoss:
      return loss;
    case Metric::kGradNorm:
      return grad_norm;
  }
  return kUnknown;
}

std::string words_of(const util::Named<config::BestMetric>& metric) {
  std::string words = metric.name();
  std::replace(words.begin(), words.end(), '_', ' ');
  return words;
}

bool ValidationHistory::add(int64_t step, double value) {
  validated_at_ = step;
  const double sign = higher_is_better(metric_.value()) ? -1 : 1;
  const bool better = std::isfinite(value) && (!best_ || sign * value < sign * best_->value - min_delta_);
  if (better) best_ = Best{.step = step, .value = value};
  not_better_in_a_row_ = better ? 0 : not_better_in_a_row_ + 1;
  return better;
}

nlohmann::json ValidationHistory::state() const {
  nlohmann::json state = {{"not_better_in_a_row", not_better_in_a_row_},
                          {"validated_at", validated_at_},
                          {"metric", metric_.name()}};
  if (best_) state["best"] = {{"step", best_->step}, {"value", best_->value}};
  return state;
}

void ValidationHistory::set_state(const nlohmann::json& state) {
  not_better_in_a_row_ = state.at("not_better_in_a_row").get<int64_t>();
  validated_at_ = state.at("validated_at").get<int64_t>();
  best_.reset();
  if (!state.contains("metric")) {  // of an older version, which compared losses
    if (metric_ != config::BestMetric::kValidationLoss) {
      not_better_in_a_row_ = 0;
    } else if (state.contains("best")) {
      best_ = Best{.step = state.at("best").at("step").get<int64_t>(),
                   .value = state.at("best").at("loss").get<double>()};
    }
    return;
  }
  if (state.at("metric").get<std::string>() != metric_.name()) {
    not_better_in_a_row_ = 0;
    return;
  }
  if (!state.contains("best")) return;
  const nlohmann::json& best = state.at("best");
  best_ = Best{.step = best.at("step").get<int64_t>(), .value = best.at("value").get<double>()};
}

}  // namespace fsdp::train
