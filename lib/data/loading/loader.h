#pragma once

// Batches from the samples of a data set. In token files, sample i of sequence length T is the tokens [i*T,
// i*T + T + 1): the inputs, and the targets one token later. Tokens after the last whole sample are not used.
//
// No function is collective and no state is kept between calls: a batch depends only on its global position,
// so that a resumed run, at any world size, repeats and skips no sample.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/options/options.h"
#include "data/tokens/sample_order.h"
#include "data/tokens/sample_reader.h"
#include "data/tokens/token_batches.h"

namespace fsdp::data {

/// The completions of a batch that an objective scores.
struct ScoredCompletions {
  /// Number of the document whose completion each target belongs to, or -1. [B, T] int64, on the device of
  /// the targets.
  at::Tensor of_targets;
  at::Tensor preferred;   ///< whether a document is chosen or desirable, [documents] bool, in host memory
  at::Tensor references;  ///< the stored reference's log-probabilities, [documents] double; undefined: none
};

struct Batch {
  /// Inputs and targets, [B, T] int64; with data.max_tokens, B and T differ between batches. Loaders return
  /// them in host memory, PrefetchingBatches on the device.
  at::Tensor inputs, targets;
  int64_t valid_rows = 0;  ///< number of rows that count, which are the first ones; in training all
  int64_t counted = 0;     ///< number of targets that count
  /// Number of inputs of each row that are tokens. Padding follows them. The mesh's axis context divides
  /// inputs and targets, but not these numbers.
  std::vector<int64_t> row_tokens = {};
  /// Mask of the inputs that are tokens, [B, T] bool, on the device of the inputs. Undefined: all inputs are
  /// tokens, or the model does not use the mask.
  at::Tensor is_token = {};
  /// Positions at which documents begin, for each row, 0 first; null unless data.documents = "mask".
  std::shared_ptr<const std::vector<std::vector<int64_t>>> document_starts = nullptr;
  int64_t first_row = 0;  ///< global position of row 0 in the run (training only)
  /// Bytes of the text that the targets stand for, if the source counts them.
  std::optional<int64_t> text_bytes = std::nullopt;
  /// Null unless rows are preferences, whose documents are packed into one row (packed_documents.h). The
  /// number of targets that count is then that of samples.
  std::shared_ptr<ScoredCompletions> scored = nullptr;
  int64_t preferred_targets = 0;  ///< number of targets that count in preferred documents
  /// The same prompts with exchanged completions, if the objective needs them and the batch has samples.
  std::shared_ptr<Batch> exchanged = nullptr;

  /// A teacher's likeliest tokens, [B, T, k] int64, and their log-probabilities, fp32, if they are stored.
  at::Tensor teacher_ids = {}, teacher_log_probs = {};

  /// Returns the tensors that belong on the device.
  std::vector<at::Tensor*> device_tensors();
};

/// This process's place among those that share the work.
struct Placement {
  int rank = 0;
  int world_size = 1;
  int64_t gradient_accumulation_steps = 1;  ///< A: micro-batches per step (training only)
};

/// The source of a training step's batches.
class BatchSource {
 public:
  virtual ~BatchSource() = default;
  /// This rank's rows of a micro-batch; first_global_sample is the global position at the start of the step.
  virtual Batch batch(int64_t first_global_sample, int64_t micro_batch) const = 0;
};

/// The training set's batches. With data.max_tokens, a batch is one element of the order: positions, epochs
/// and mixtures then count batches.
class TrainLoader final : public BatchSource {
 public:
  /// Opens options.train (sample_reader.h). Throws Error(kData) for an entry that cannot be used, for fewer
  /// samples than one step of all ranks consumes (with weights: for a set without any), and for token ids
  /// outside the vocabulary, as far as open_samples() checks them.
  TrainLoader(const DataOptions& options, int64_t vocab_size, uint64_t seed, const Placement& placement);

  /// Returns the batch whose row b is the sample at position first_global_sample + (micro_batch * W + rank) *
  /// B + b in the order of the only set, or of the mixture. Throws Error(kData) for a token id outside the
  /// vocabulary.
  Batch batch(int64_t first_global_sample, int64_t micro_batch) const override;

  /// A set of the mixture: the only one, or one for each weight.
  struct Set {
    std::string name;  ///< its entry in options.train; "" if it is the only set
    std::unique_ptr<Samples> samples;
    std::unique_ptr<TokenBatches> batches;  ///< null unless data.max_tokens is set
    SampleOrder order;                      ///< order of the samples, or of the batches
  };
  const std::vector<Set>& sets() const { return sets_; }
  /// Returns Samples::state() of each set, at a position of the run.
  nlohmann::json state(int64_t position) const;
  /// Takes what state() returned; anything else is ignored, since samples do not depend on it.
  void resume(const nlohmann::json& state);
  /// Returns approximately how many of the run's first `samples` samples are from a set.
  double samples_of(size_t set, int64_t samples) const;

  /// Positions that a step of A micro-batches takes: A * W * B; with data.max_tokens A * W.
  int64_t samples_per_step() const { return samples_per_step_; }
  /// Positions that each micro-batch of all ranks takes.
  int64_t samples_per_micro_step() const {
    return samples_per_step_ / placement_.gradient_accumulation_steps;
  }
  /// Samples per epoch, of all sets together. Texts are tokenized once to count them.
  int64_t num_samples() const;
  /// Samples per epoch, if they are known for all sets; and of one set, or its batches.
  std::optional<int64_t> known_samples() const;
  std::optional<int64_t> known_samples(size_t set) const;
  int64_t num_tokens() const;
  /// Returns the survey of all sets that have one; nothing if no set has one.
  std::optional<RowSurvey> survey() const;
  /// Returns what the sets tell about their samples (Samples::note()).
  std::string notes() const;

 private:
  Batch batch_by_tokens(int64_t position) const;
  Mixture::MixedSample place_of(int64_t position) const;

  DataOptions options_;
  Placement placement_;
  std::vector<Set> sets_;
  int64_t samples_per_step_;
  std::optional<Mixture> mixture_;  ///< mixture of several sets; nothing for one set
};

/// Reads the samples of the validation files once, in file order. All ranks get the same number of batches.
/// The last batches are padded with rows that do not count (targets kIgnoredTarget), possibly whole batches
/// of them. The validation loss is therefore the sum over tokens and ranks, divided by num_samples() * T.
class ValidationLoader {
 public:
  /// Opens options.validation, which must not be empty. Reads at most max_samples samples; 0: all. Throws
  /// Error(kData) as TrainLoader does, and for files without a single whole sample.
  ValidationLoader(const DataOptions& options, int64_t vocab_size, int64_t max_samples,
                   const Placement& placement);

  /// Number of batches of each rank.
  int64_t num_batches() const;
  /// Returns batch `index` (from 0) of this rank: row b is the sample (index * W + rank) * B + b. B is
  /// micro_batch_size, or the number of samples if that is less. With data.max_tokens, rows are as long as
  /// the longest sample of the batch.
  Batch batch(int64_t index) const;

  /// The sample in row 0 of this rank's batch, and the number of rows in the batches of all ranks.
  int64_t first_sample(int64_t index) const {
    return (index * placement_.world_size + placement_.rank) * options_.micro_batch_size;
  }
  int64_t num_rows() const { return num_batches() * placement_.world_size * options_.micro_batch_size; }

  const Samples& samples() const { return *samples_; }

  /// Number of samples that all ranks together read.
  int64_t num_samples() const { return num_samples_; }

 private:
  int64_t row_length(int64_t first, int64_t rows) const;

  DataOptions options_;
  Placement placement_;
  std::unique_ptr<Samples> samples_;
  int64_t num_samples_;
};

}  // namespace fsdp::data
