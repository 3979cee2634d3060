#pragma once

// Data sets that data.dataset can name, and the samples that they make of data.train and data.validation.

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/util/registry.h"
#include "data/options/options.h"
#include "data/options/row_survey.h"

namespace fsdp::data {

/// Target of a token that does not count: the default ignore_index of cross entropy.
inline constexpr int64_t kIgnoredTarget = -100;

/// A document whose completion an objective scores: a range of a row's targets.
struct ScoredDocument {
  int64_t begin = 0, end = 0;  ///< of its inputs in the row
  bool preferred = false;      ///< chosen or desirable
  bool exchanged = false;      ///< its completion is another document's
  /// Log-probability of its completion by the stored reference; NaN: unknown.
  double reference = std::numeric_limits<double>::quiet_NaN();
  /// Whether the target of each input belongs to the completion: [end - begin].
  std::vector<bool> completes = {};
};

/// Number of samples of a set without an end (Samples::num_samples()).
inline constexpr int64_t kEndless = std::numeric_limits<int64_t>::max();

/// A set of samples of one length, from which a loader takes its rows. SampleReader (sample_reader.h) reads
/// samples from token files. Thread-safe: any rank and thread may read any sample at any time, and gets the
/// same sample each time.
class Samples {
 public:
  struct Row {
    int64_t counted = 0;  ///< number of targets that are not kIgnoredTarget
    /// Number of inputs that are tokens of a document. They are the first ones of the row; padding follows.
    /// -1: length() inputs, or all if length() is 0.
    int64_t tokens = -1;
    /// Positions in the row at which documents begin, 0 first, with data.documents = "mask". Otherwise empty.
    std::vector<int64_t> document_starts = {};
    /// A teacher's likeliest tokens for each input and their log-probabilities, with DataOptions::teacher:
    /// [T * top_k], otherwise empty.
    std::vector<int64_t> teacher_ids = {};
    std::vector<float> teacher_log_probs = {};
    /// Documents of a row of preferences, otherwise empty.
    std::vector<ScoredDocument> documents = {};
  };

  virtual ~Samples() = default;

  /// kEndless: samples of pass after pass over the data, in an order of their own.
  virtual int64_t num_samples() const = 0;
  /// Number of tokens of all samples together, for messages. 0: not known yet.
  virtual int64_t num_tokens() const = 0;
  /// Source of the samples, for messages.
  virtual std::string name() const = 0;
  /// Reads sample `sample` (from 0) as a row of T = data.sequence_length tokens. inputs, targets: [T].
  virtual Row read(int64_t sample, int64_t* inputs, int64_t* targets) const = 0;
  /// Begins to fetch a sample that will be read. Only a hint. Thread-safe.
  virtual void will_read(int64_t /*sample*/) const {}
  /// Length of the row up to its last target that counts, 1 to T; 0: unknown, so data.max_tokens is refused.
  virtual int64_t length(int64_t /*sample*/) const { return 0; }
  /// Returns the survey of the first `rows` samples, if data.train_on excludes targets of conversations.
  virtual std::optional<RowSurvey> survey(int64_t /*rows*/) const { return std::nullopt; }
  /// Returns a sentence about samples that were left out or cut, for the log; empty: all are whole.
  virtual std::string note() const { return {}; }
  /// Returns the token that ends a document, if samples depend on it and no index records the ends.
  virtual std::optional<int64_t> document_separator() const { return std::nullopt; }
  /// Identifies these samples when a run resumes (data_identity.h): a list of objects, each with "name",
  /// "tokens", "documents" and "sampled_xxh3_64". Empty: the loader hashes some rows instead.
  virtual nlohmann::json identity() const { return nlohmann::json::array(); }

  /// Samples of a pass, if they are known.
  virtual std::optional<int64_t> known_pass() const { return num_samples(); }
  /// Returns the samples of a pass, for which a set without an end may have to be read once.
  virtual int64_t count_pass() const { return num_samples(); }
  /// Returns from where reading can go on at a sample without work that has been done, for resume(). Samples
  /// do not depend on it.
  virtual nlohmann::json state(int64_t /*sample*/) const { return nullptr; }
  /// Takes a state() of the same set. Throws nlohmann::json::exception for anything else.
  virtual void resume(const nlohmann::json& /*state*/) {}
};

/// The arguments with which a data set is opened.
struct SamplesRequest {
  std::vector<std::string> entries;  ///< entries of data.train or data.validation, as in the config
  DataOptions options = {};
  int64_t vocab_size = 0;
  bool repeats = false;  ///< whether a set may be kEndless, shuffled by `seed`
  uint64_t seed = 0;
};

/// Opens the samples of a data set. Throws Error(kData) for entries that cannot be used.
using OpenSamples = std::function<std::unique_ptr<Samples>(const SamplesRequest&)>;

/// Opens the entries of kTokenFiles that are texts, and returns null for others. Null in programs that read
/// no texts. Set once at the start of a program.
OpenSamples& open_texts();

/// The built-in data set: token files, or patterns of them. Its function is null, since it needs libtorch.
inline constexpr const char* kTokenFiles = "token_files";

util::Registry<OpenSamples>& datasets();

/// Whether rows may have targets that do not count.
inline bool counts_vary(const DataOptions& options) {
  return options.documents != DocumentTreatment::kJoin || options.train_on != TrainOn::kAll ||
         options.dataset != kTokenFiles || options.preference.is_on();
}

/// Returns the document starts of `rows` rows of one document each, as plans and dry runs assume; null unless
/// options.documents = "mask".
inline std::shared_ptr<const std::vector<std::vector<int64_t>>> one_document_a_row(const DataOptions& options,
                                                                                   int64_t rows) {
  if (options.documents != DocumentTreatment::kMask) return nullptr;
  return std::make_shared<std::vector<std::vector<int64_t>>>(static_cast<size_t>(rows),
                                                             std::vector<int64_t>{0});
}

}  // namespace fsdp::data
