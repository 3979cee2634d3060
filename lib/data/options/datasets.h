#pragma once

// Data sets: what data.dataset can name, and the samples that they make of data.train and data.validation.

#include <cstdint>
#include <functional>
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

/// A set of samples of one length, from which a loader takes its rows. SampleReader (sample_reader.h) reads
/// them from token files. Thread-safe: any rank and thread may read any sample at any time, and gets the same
/// each time.
class Samples {
 public:
  struct Row {
    int64_t counted = 0;  ///< targets that are not kIgnoredTarget
    /// Inputs that are tokens of a document, the first ones of the row; behind them is padding. -1: as many as
    /// length() says, or all.
    int64_t tokens = -1;
    /// With data.documents = "mask": where documents begin in the row, 0 first. Else empty.
    std::vector<int64_t> document_starts = {};
  };

  virtual ~Samples() = default;

  virtual int64_t num_samples() const = 0;
  /// Of all samples together, for messages.
  virtual int64_t num_tokens() const = 0;
  /// Where the samples come from, for messages.
  virtual std::string name() const = 0;
  /// Sample `sample` (from 0) as a row of T = data.sequence_length tokens. inputs, targets: [T].
  virtual Row read(int64_t sample, int64_t* inputs, int64_t* targets) const = 0;
  /// Places of the row up to its last target that counts, 1 to T; 0: unknown, then data.max_tokens is refused.
  virtual int64_t length(int64_t /*sample*/) const { return 0; }
  /// The survey of the first `rows` samples, where data.train_on leaves out targets of conversations; else nothing.
  virtual std::optional<RowSurvey> survey(int64_t /*rows*/) const { return std::nullopt; }
  /// The token that ends a document, where samples depend on it and no index says where documents end.
  virtual std::optional<int64_t> document_separator() const { return std::nullopt; }
  /// Distinguishes these samples from others when a run resumes (data_identity.h): a list of objects, each
  /// with "name", "tokens", "documents" and "sampled_xxh3_64". Empty: the loader hashes some rows instead.
  virtual nlohmann::json identity() const { return nlohmann::json::array(); }
};

/// What a data set opens.
struct SamplesRequest {
  std::vector<std::string> entries;  ///< of data.train or data.validation, as in the config
  DataOptions options;
  int64_t vocab_size = 0;
};

/// Throws Error(kData) for entries that cannot be used.
using OpenSamples = std::function<std::unique_ptr<Samples>(const SamplesRequest&)>;

/// The built-in data set: token files, or patterns of them. Its function is null, since it needs libtorch.
inline constexpr const char* kTokenFiles = "token_files";

util::Registry<OpenSamples>& datasets();

/// Whether rows may have targets that do not count.
inline bool counts_vary(const DataOptions& options) {
  return options.documents != DocumentTreatment::kJoin || options.train_on != TrainOn::kAll ||
         options.dataset != kTokenFiles;
}

/// Where documents begin in `rows` rows of one document each, as plans and dry runs assume; null unless
/// options.documents = "mask".
inline std::shared_ptr<const std::vector<std::vector<int64_t>>> one_document_a_row(const DataOptions& options,
                                                                                   int64_t rows) {
  if (options.documents != DocumentTreatment::kMask) return nullptr;
  return std::make_shared<std::vector<std::vector<int64_t>>>(static_cast<size_t>(rows),
                                                             std::vector<int64_t>{0});
}

}  // namespace fsdp::data
