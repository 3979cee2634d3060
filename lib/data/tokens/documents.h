#pragma once

// Beginnings of documents in token files: recorded by the file's index (Megatron, fairseq) or the companion
// of conversations, otherwise after each separator token. A document also begins at the start of each file.

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "data/tokens/token_files.h"

namespace fsdp::data {

/// Whether a file records where its documents begin.
bool records_documents(const TokenFile& file);

/// Finds documents in the joined files. Thread-safe.
class Documents {
 public:
  /// Requires: the files outlive the object. Throws Error(kUsage) if a file needs a separator and has none.
  Documents(const TokenFiles& files, std::optional<int64_t> separator);

  std::optional<int64_t> separator() const { return separator_; }

  /// Returns the positions in [1, count) of the tokens [begin, begin + count) of the joined files at which a
  /// document begins, in ascending order. `tokens` are these tokens.
  std::vector<int64_t> starts_in(int64_t begin, int64_t count, const int64_t* tokens) const;

  /// Calls visit(begin, end) for each document of the joined files, in order. Files without an index or
  /// companion are read whole.
  void for_each(const std::function<void(int64_t begin, int64_t end)>& visit) const;

 private:
  const TokenFiles& files_;
  std::optional<int64_t> separator_;
};

/// Samples with tokens of one document each: document by document, T predictions per sample, fewer in the
/// last sample of a document. A document of one token, which predicts nothing, has no sample.
class DocumentSamples {
 public:
  DocumentSamples(const Documents& documents, int64_t sequence_length);

  int64_t num_samples() const { return samples_before_.back(); }

  struct Range {
    int64_t begin = 0, tokens = 0;  ///< tokens of the joined files; 2 to T + 1 of them
  };
  Range sample(int64_t index) const;

 private:
  int64_t sequence_length_;
  std::vector<int64_t> begins_, ends_;         ///< [documents with samples]
  std::vector<int64_t> samples_before_ = {0};  ///< [documents with samples + 1]
};

}  // namespace fsdp::data
