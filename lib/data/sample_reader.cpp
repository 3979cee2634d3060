#include "data/sample_reader.h"

#include <algorithm>

#include "data/data_identity.h"
#include "data/tokenizer.h"
#include "util/error.h"

namespace fsdp::data {
namespace {

/// Nothing where every file has an index of its own.
std::optional<int64_t> separator_of(const TokenFiles& files, const DataOptions& options) {
  if (options.document_separator >= 0) return options.document_separator;
  bool is_needed = false;
  for (size_t i = 0; i < files.paths().size(); ++i) is_needed = is_needed || !files.file(i).has_documents();
  if (!is_needed) return std::nullopt;
  return make_tokenizer(options.tokenizer)->end_of_text();
}

}  // namespace

SampleReader::SampleReader(const std::vector<std::string>& paths, const DataOptions& options,
                           int64_t vocab_size)
    : sequence_length_(options.sequence_length),
      vocab_size_(vocab_size),
      files_(std::make_unique<TokenFiles>(paths)) {
  num_samples_ = (files_->size() - 1) / sequence_length_;
  if (options.documents == DocumentTreatment::kJoin) return;
  documents_ = std::make_unique<Documents>(*files_, separator_of(*files_, options));
  if (options.documents == DocumentTreatment::kSplit) {
    document_samples_.emplace(*documents_, sequence_length_);
    num_samples_ = document_samples_->num_samples();
  }
}

nlohmann::json SampleReader::identity() const { return identity_of(*files_); }

SampleReader::Row SampleReader::read(int64_t sample, int64_t* inputs, int64_t* targets) const {
  DocumentSamples::Range range{.begin = sample * sequence_length_, .tokens = sequence_length_ + 1};
  if (document_samples_) range = document_samples_->sample(sample);
  std::vector<int64_t> tokens(static_cast<size_t>(range.tokens));
  files_->read(range.begin, range.tokens, tokens.data());
  check_ids(*files_, range.begin, range.tokens, tokens.data(), vocab_size_);

  Row row{.counted = range.tokens - 1, .document_starts = {}};
  // Behind the end of a document any input will do, and id 0 is in every vocabulary.
  std::fill(std::copy_n(tokens.data(), row.counted, inputs), inputs + sequence_length_, 0);
  std::fill(std::copy_n(tokens.data() + 1, row.counted, targets), targets + sequence_length_, kIgnoredTarget);
  if (!documents_ || document_samples_) return row;
  row.document_starts = {0};
  for (int64_t place : documents_->starts_in(range.begin, range.tokens, tokens.data())) {
    targets[place - 1] = kIgnoredTarget;
    --row.counted;
    if (place < sequence_length_) row.document_starts.push_back(place);
  }
  return row;
}

}  // namespace fsdp::data
