#pragma once

// What a loader takes its rows from: a set of samples of one length. SampleReader (sample_reader.h) reads them
// from token files; data.dataset can name another implementation (datasets.h).

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace fsdp::data {

/// Target of a token that does not count: the default ignore_index of cross entropy.
inline constexpr int64_t kIgnoredTarget = -100;

/// Thread-safe: any rank and thread may ask for any sample at any time, and gets the same each time.
class Samples {
 public:
  struct Row {
    int64_t counted = 0;  ///< targets that are not kIgnoredTarget
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
  /// What tells these samples from others, for a run that resumes (data_identity.h): a list of objects, each
  /// with "name", "tokens", "documents" and "sampled_xxh3_64". Empty: the loader takes a hash of some rows.
  virtual nlohmann::json identity() const { return nlohmann::json::array(); }
};

}  // namespace fsdp::data
