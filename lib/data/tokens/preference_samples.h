#pragma once

// Samples of preferences, from token files that fsdp-data tokenize --preference writes. Each document of such
// a file is a prompt with a completion, and the file's companion (token_turns.h) says which tokens are the
// completion and whether it is preferred.
//
//   pairs    sample i is a chosen document and the rejected one after it, one after another in its row
//   single   sample i is one document, desirable or not, and after it the same prompt with the completion of
//            the document before, from which KTO estimates how far the model is from its reference
//
// Documents are cut at their end where a row of data.sequence_length cannot hold both. A sample is left out
// if nothing remains of a completion, as TRL does (github.com/huggingface/trl).

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/options/datasets.h"
#include "data/options/options.h"
#include "data/tokens/token_files.h"

namespace fsdp::data {

class PreferenceSamples final : public Samples {
 public:
  /// Opens the files. Throws Error(kData) for files without a companion, for documents that are not those of
  /// options.preference.rows, and, with stored_reference, for files whose reference is missing or of other
  /// data.
  PreferenceSamples(const std::vector<std::string>& paths, const DataOptions& options, int64_t vocab_size);

  int64_t num_samples() const override { return static_cast<int64_t>(samples_.size()); }
  int64_t num_tokens() const override { return files_.size(); }
  std::string name() const override { return files_.paths().front(); }
  Row read(int64_t sample, int64_t* inputs, int64_t* targets) const override;
  int64_t length(int64_t sample) const override;
  nlohmann::json identity() const override;
  std::string note() const override;

  const TokenFiles& files() const { return files_; }
  /// Number of samples that were left out because nothing would remain of a completion.
  int64_t left_out() const { return left_out_; }
  /// Number of documents that are cut in the samples that are left.
  int64_t cut() const { return cut_; }
  /// The first of a sample's documents, numbered over all files.
  int64_t first_document(int64_t sample) const { return samples_[static_cast<size_t>(sample)].first; }
  int64_t num_documents() const { return static_cast<int64_t>(documents_.size()); }

 private:
  struct Document {
    int64_t begin = 0;  ///< first token of the joined files
    int64_t tokens = 0;
    int64_t completion = 0;  ///< number of tokens before the completion
    bool preferred = false;
  };
  /// Places of two documents' tokens. The second's prompt may be another document's than its completion.
  struct Sample {
    int64_t first = 0, limit = 0;  ///< document, and the number of tokens at which both are cut
  };
  struct Part {
    const Document* prompt;
    const Document* completion;
    int64_t tokens() const { return prompt->completion + completion->tokens - completion->completion; }
  };

  void find_documents();
  void choose_samples();
  void read_references();
  std::vector<Part> parts_of(int64_t first) const;
  int64_t exchanged_with(int64_t document) const;
  /// Describes a document for errors: "document 3 of pairs.bin".
  std::string described(int64_t document) const;
  void append(const Part& part, const Sample& sample, int64_t* inputs, int64_t* targets, Row& row) const;

  PreferenceOptions options_;
  int64_t sequence_length_, vocab_size_;
  TokenFiles files_;
  std::vector<Document> documents_;
  std::vector<Sample> samples_;
  std::vector<double> references_;  ///< by document; two for each if rows are single
  int64_t left_out_ = 0, cut_ = 0;
};

}  // namespace fsdp::data
