#pragma once

// The samples of token files, and how documents are treated (DataOptions::documents):
//
//   join   sample i is the tokens [i*T, i*T + T + 1), whatever documents they are of
//   mask   the same tokens; the sample records where documents begin, and targets that begin one do not count
//   split  a sample holds tokens of one document only (DocumentSamples); the rest of its row does not count
//
// In conversations, data.train_on also selects the targets that count.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/options/datasets.h"
#include "data/options/options.h"
#include "data/tokens/documents.h"
#include "data/tokens/stored_teacher.h"
#include "data/tokens/token_files.h"

namespace fsdp::data {

class SampleReader final : public Samples {
 public:
  /// Opens the files. Throws Error(kData) for a file that cannot be used, and for one in which data.train_on
  /// counts no token. Throws Error(kUsage) if documents are needed and cannot be found.
  SampleReader(const std::vector<std::string>& paths, const DataOptions& options, int64_t vocab_size);

  int64_t num_samples() const override { return num_samples_; }
  int64_t num_tokens() const override { return files_->size(); }
  std::string name() const override { return files_->paths().front(); }
  const TokenFiles& files() const { return *files_; }

  /// Reads a sample. Throws Error(kData) for a token id outside the vocabulary.
  void will_read(int64_t sample) const override;
  Row read(int64_t sample, int64_t* inputs, int64_t* targets) const override;
  int64_t length(int64_t sample) const override;
  nlohmann::json identity() const override;
  std::optional<RowSurvey> survey(int64_t rows) const override;
  std::optional<int64_t> document_separator() const override {
    return documents_ ? documents_->separator() : std::nullopt;
  }

 private:
  /// Tokens of a sample: its inputs and the target after them.
  DocumentSamples::Range range_of(int64_t sample) const;
  bool fits_a_row(int64_t begin, int64_t end) const;
  void leave_out_uncounted(int64_t begin, int64_t count, int64_t* targets, Row& row) const;

  int64_t sequence_length_;
  int64_t vocab_size_;
  TrainOn train_on_;
  std::unique_ptr<TokenFiles> files_;
  std::unique_ptr<Documents> documents_;             ///< null if data.documents is "join"
  std::optional<DocumentSamples> document_samples_;  ///< present if data.documents is "split"
  int64_t num_samples_ = 0;
  std::unique_ptr<StoredTeacher> teacher_;  ///< null unless options.teacher is stored
};

/// Opens request.entries as the data set options.dataset. Ids of token files are checked against the
/// vocabulary if the files total at most 1 GiB; ids of other data sets are checked as rows are read. Throws
/// Error(kUsage) for an unknown data set, and Error(kData) for entries that cannot be used.
std::unique_ptr<Samples> open_samples(const SamplesRequest& request);

}  // namespace fsdp::data
