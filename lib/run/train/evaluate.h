#pragma once

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/util/enum_names.h"
#include "comm/api/communicator.h"
#include "data/loading/loader.h"
#include "data/loading/prefetch.h"
#include "data/tokenizers/tokenizer.h"
#include "model/nn/stage.h"
#include "run/train/objective.h"
#include "run/train/task_scores.h"
#include "setup/config/config.h"

namespace fsdp::train {

/// How well a model predicts the validation samples; the same on every rank.
struct Validation {
  double loss = 0;  ///< mean over all tokens, in nats
  int64_t samples = 0;
  int64_t tokens = 0;            ///< predicted tokens
  std::optional<int64_t> bytes;  ///< bytes of these tokens' text; nullopt: unknown
  std::optional<double> accuracy =
      std::nullopt;                ///< share of targets with the highest score; nullopt: not counted
  bool is_of_tokens = true;        ///< whether the loss is the cross entropy of tokens; otherwise of samples
  NamedNumbers of_objective = {};  ///< metrics of training.objective

  double perplexity() const { return std::exp(loss); }
  /// Bits per byte of text that compression by the model would take, which are comparable among tokenizers.
  std::optional<double> bits_per_byte() const;
};

/// Options of a validation, the same on every rank.
struct ValidationHooks {
  const data::TokenBytes* bytes = nullptr;                     ///< null: bytes are not counted
  bool accuracy = false;                                       ///< keeps all scores of a batch in memory
  data::PrefetchOptions prefetch = {};                         ///< device and end are set by validate()
  std::shared_ptr<const parallel::CutSequence> cut = nullptr;  ///< the cut of the rows that `prefetch` yields
  Objective* objective = nullptr;                              ///< null: the cross entropy of tokens
  bool by_sample = false;  ///< the loss is the same number at any world size (model/kernels/sample_sums.h)
  int64_t copies = 1;      ///< number of ranks that compute the same rows: the ranks of the mesh's axis model
  /// Returns whether to end the validation. Collective; called between batches.
  std::function<bool()> stop_requested = nullptr;
};

/// Validates without recording for backward. Returns the same numbers at any world size, up to rounding;
/// nullopt if `stop_requested` ended it. Collective. Throws comm::AgreedError(kData) when no target counts.
std::optional<Validation> validate(nn::Stage& model, const data::ValidationLoader& loader,
                                   comm::Communicator& communicator, const ValidationHooks& hooks = {});

/// Returns "loss 1.8342, perplexity 6.26, 2.6462 bits per byte, accuracy 46.10 % over 512 samples".
std::string validation_text(const Validation& validation);

/// Throws comm::AgreedError(kDiverged) for a loss that is not finite. The same on every rank.
void require_finite(const Validation& validation, const std::string& where);

/// Returns the bytes of data.tokenizer's tokens. Null, with a warning on the first rank, if the tokenizer
/// cannot be loaded, because losses need none. Not collective.
std::unique_ptr<data::TokenBytes> token_bytes(const config::Config& config, bool is_first_rank);

struct Evaluation {
  std::optional<Validation> validation;  ///< nothing without data.validation
  std::vector<TaskResult> tasks;
};
/// Returns a line for each.
std::string evaluation_text(const Evaluation& evaluation);
/// Returns one JSON object with the names of metrics.jsonl (docs/schemas/fsdp-train-evaluate.json).
std::string evaluation_json(const Evaluation& evaluation);

/// Validates the weights of a checkpoint, a run's newest checkpoint, a safetensors file or a Hugging Face
/// folder on data.validation and evaluation.tasks, sharded as the config says. Makes no optimizer and writes
/// no file. Collective. Throws Error(kUsage) when the config names neither, Error(kDiverged) for a loss that
/// is not finite, and the errors of validate(), of TaskScores and of opening data and weights.
Evaluation evaluate(const config::Config& config, std::shared_ptr<comm::Communicator> communicator,
                    const std::filesystem::path& weights);

/// Returns the value of evaluation.best_metric; NaN if it was not measured. `loss` and `grad_norm` are the
/// validated step's.
double best_metric_value(config::BestMetric metric, const Validation& validation, double loss,
                         double grad_norm);

/// Returns the metric's name in words, such as "validation loss".
std::string words_of(const util::Named<config::BestMetric>& metric);

/// The best validation of a run, and whether later ones still improve on it.
///
/// Not collective: all ranks compute with the same numbers and decide alike, and so does a run that resumes,
/// because the state is saved. Not thread-safe.
class ValidationHistory {
 public:
  /// Uses patience, min_delta and best_metric of [evaluation].
  explicit ValidationHistory(const config::EvaluationOptions& options)
      : patience_(options.patience), min_delta_(options.min_delta), metric_(options.best_metric) {}

  struct Best {
    int64_t step = 0;
    double value = 0;  ///< value of best_metric
  };

  /// Adds the value of best_metric and returns whether it is the best so far: the first, or better than the
  /// best by more than min_delta. A value that is not finite never is.
  bool add(int64_t step, double value);

  const std::optional<Best>& best() const { return best_; }
  /// The step of the newest validation; 0 before the first.
  int64_t validated_at() const { return validated_at_; }

  /// Whether the run is to end: the last `patience` validations did not improve on the best.
  bool patience_is_over() const { return patience_ > 0 && not_better_in_a_row_ >= patience_; }
  int64_t not_better_in_a_row() const { return not_better_in_a_row_; }

  nlohmann::json state() const;
  /// Restores state(); drops the best of another metric. Throws nlohmann's exceptions for JSON that state()
  /// did not return.
  void set_state(const nlohmann::json& state);

 private:
  int64_t patience_;
  double min_delta_;
  util::Named<config::BestMetric> metric_;
  std::optional<Best> best_;
  int64_t validated_at_ = 0;
  int64_t not_better_in_a_row_ = 0;
};

}  // namespace fsdp::train
