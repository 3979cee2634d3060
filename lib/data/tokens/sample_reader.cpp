#include "data/tokens/sample_reader.h"

#include <algorithm>
#include <utility>

#include "base/util/error.h"
#include "base/util/hash.h"
#include "base/util/text.h"
#include "data/tokenizers/tokenizer.h"
#include "data/tokens/data_identity.h"
#include "data/tokens/file_patterns.h"
#include "data/tokens/preference_samples.h"

namespace fsdp::data {
namespace {

/// Returns the token that separates documents; nothing if every file has an index.
std::optional<int64_t> separator_of(const TokenFiles& files, const DataOptions& options) {
  if (options.document_separator >= 0) return options.document_separator;
  bool is_needed = false;
  for (size_t i = 0; i < files.paths().size(); ++i)
    is_needed = is_needed || !records_documents(files.file(i));
  if (!is_needed) return std::nullopt;
  return make_tokenizer(options.tokenizer)->end_of_text();
}

bool counts(TrainOn train_on, TokenPart part) {
  return part == TokenPart::kLastTurn || (part == TokenPart::kAssistant && train_on == TrainOn::kAssistant);
}

/// Refuses files without the companion from which data.train_on learns who wrote the tokens.
void check_turns(const TokenFiles& files, TrainOn train_on) {
  if (train_on == TrainOn::kAll) return;
  for (size_t i = 0; i < files.paths().size(); ++i) {
    const TokenTurns* turns = files.file(i).turns();
    const std::string& path = files.file(i).path();
    if (turns == nullptr) {
      fail(ErrorKind::kData, "data.train_on = ", util::name_of(train_on),
           " needs token files of conversations, but ", path, " has no companion ",
           turns_path(path).filename().string(),
           "; create both with fsdp-data tokenize --chat, or set data.train_on = all");
    }
    if (turns->count(TokenPart::kLastTurn) + turns->count(TokenPart::kAssistant) == 0) {
      fail(ErrorKind::kData, "data.train_on = ", util::name_of(train_on), " counts none of the ",
           files.file(i).size(), " tokens of ", path,
           "; use conversations in which the assistant says something");
    }
  }
}

/// Files up to this size are searched for invalid ids before training starts.
constexpr int64_t kMaxScannedBytes = int64_t{1} << 30;

/// Samples of a data set that is not built in. Checks that rows are as the loader promises, and computes the
/// identity from a hash of rows if the data set has none.
class ForeignSamples final : public Samples {
 public:
  ForeignSamples(std::unique_ptr<Samples> samples, const SamplesRequest& request)
      : samples_(std::move(samples)),
        dataset_(request.options.dataset),
        length_(request.options.sequence_length),
        vocab_size_(request.vocab_size),
        masks_(request.options.documents == DocumentTreatment::kMask) {
    if (samples_ == nullptr || samples_->num_samples() < 0) {
      fail(ErrorKind::kData, "data.dataset ", dataset_, " returned no samples for ",
           util::join(request.entries, ", "), "; correct the plug-in");
    }
  }

  int64_t num_samples() const override { return samples_->num_samples(); }
  int64_t num_tokens() const override { return samples_->num_tokens(); }
  std::string name() const override { return samples_->name(); }
  int64_t length(int64_t sample) const override { return std::min(samples_->length(sample), length_); }

  Row read(int64_t sample, int64_t* inputs, int64_t* targets) const override {
    Row row = samples_->read(sample, inputs, targets);
    row.counted = 0;
    if (masks_) require_document_starts(row, sample);
    if (row.tokens < 0) row.tokens = length(sample) > 0 ? length(sample) : length_;
    row.tokens = std::min(row.tokens, length_);
    for (int64_t i = 0; i < length_; ++i) {
      const bool counts = targets[i] != kIgnoredTarget;
      row.counted += counts ? 1 : 0;
      require_token(inputs[i], sample, i);
      if (counts) require_token(targets[i], sample, i);
    }
    return row;
  }

  nlohmann::json identity() const override {
    nlohmann::json identity = samples_->identity();
    return identity.empty() ? nlohmann::json::array({hash_of_rows()}) : identity;
  }

 private:
  void require_token(int64_t id, int64_t sample, int64_t place) const {
    if (id >= 0 && id < vocab_size_) return;
    fail(ErrorKind::kData, "data.dataset ", dataset_,
         ": tokens must be less than model.vocab_size = ", vocab_size_, ", but found ", id, " at position ",
         place, " of sample ", sample, " of ", name(), "; correct the data or raise model.vocab_size");
  }

  /// Checks the document starts, on which attention relies: 0 first, ascending, inside the row.
  void require_document_starts(const Row& row, int64_t sample) const {
    int64_t least = 0;
    bool fits = !row.document_starts.empty() && row.document_starts.front() == 0;
    for (const int64_t start : row.document_starts) {
      fits = fits && start >= least && start < length_;
      least = start + 1;
    }
    if (fits) return;
    fail(ErrorKind::kData, "data.dataset ", dataset_,
         ": document starts must ascend from 0 with data.documents = mask, but do not in sample ", sample,
         " of ", name(), "; set data.documents to join, or correct the plug-in");
  }

  nlohmann::json hash_of_rows() const {
    constexpr int64_t kRows = 64;
    const int64_t samples = num_samples(), rows = std::min(samples, kRows);
    std::vector<int64_t> row(static_cast<size_t>(2 * length_));
    uint64_t hash = 0;
    for (int64_t i = 0; i < rows; ++i) {
      samples_->read(i * (samples / rows), row.data(), row.data() + length_);
      hash = util::mix64(hash ^ util::xxh3_64(row.data(), row.size() * sizeof(int64_t)));
    }
    return identity_entry(name(), num_tokens(), samples, hash);
  }

  std::unique_ptr<Samples> samples_;
  std::string dataset_;
  int64_t length_, vocab_size_;
  bool masks_;
};

}  // namespace

SampleReader::SampleReader(const std::vector<std::string>& paths, const DataOptions& options,
                           int64_t vocab_size)
    : sequence_length_(options.sequence_length),
      vocab_size_(vocab_size),
      train_on_(options.train_on.value()),
      files_(std::make_unique<TokenFiles>(paths)) {
  check_turns(*files_, train_on_);
  num_samples_ = (files_->size() - 1) / sequence_length_;
  if (options.documents != DocumentTreatment::kJoin) {
    documents_ = std::make_unique<Documents>(*files_, separator_of(*files_, options));
  }
  if (options.documents == DocumentTreatment::kSplit) {
    document_samples_.emplace(*documents_, sequence_length_);
    num_samples_ = document_samples_->num_samples();
  }
  if (options.teacher.top_k > 0) {
    teacher_ = std::make_unique<StoredTeacher>(
        *files_, stored_teacher_key(*files_, options, document_separator()), num_samples_);
  }
}

nlohmann::json SampleReader::identity() const { return identity_of(*files_); }

int64_t SampleReader::length(int64_t sample) const {
  return document_samples_ ? document_samples_->sample(sample).tokens - 1 : sequence_length_;
}

DocumentSamples::Range SampleReader::range_of(int64_t sample) const {
  if (document_samples_) return document_samples_->sample(sample);
  return {.begin = sample * sequence_length_, .tokens = sequence_length_ + 1};
}

/// Whether one row has all predictions of the document with the tokens [begin, end) of the joined files.
bool SampleReader::fits_a_row(int64_t begin, int64_t end) const {
  const int64_t last_input = end - 2;
  if (document_samples_) return last_input - begin < sequence_length_;
  return last_input < begin || begin / sequence_length_ == last_input / sequence_length_;
}

std::optional<RowSurvey> SampleReader::survey(int64_t rows) const {
  if (train_on_ == TrainOn::kAll) return std::nullopt;
  RowSurvey survey{.rows = std::min(rows, num_samples_)};
  std::vector<TokenPart> parts;
  for (int64_t sample = 0; sample < survey.rows; ++sample) {
    const DocumentSamples::Range range = range_of(sample);
    parts.resize(static_cast<size_t>(range.tokens - 1));
    files_->read_parts(range.begin + 1, range.tokens - 1, parts.data());
    const bool has_targets =
        std::ranges::any_of(parts, [this](TokenPart part) { return counts(train_on_, part); });
    survey.without_targets += has_targets ? 0 : 1;
  }
  for (size_t i = 0; i < files_->paths().size(); ++i) {
    const TokenFile& file = files_->file(i);
    for (int64_t begin = 0, at = 1; at <= file.size(); ++at) {
      if (at < file.size() && file.turns()->at(at) != TokenPart::kDocumentStart) continue;
      ++survey.conversations;
      survey.longest = std::max(survey.longest, at - begin);
      const int64_t first = files_->file_begin(i);
      survey.divided += fits_a_row(first + begin, first + at) ? 0 : 1;
      begin = at;
    }
  }
  return survey;
}

void SampleReader::will_read(int64_t sample) const {
  const DocumentSamples::Range range = range_of(sample);
  files_->will_read(range.begin, range.tokens);
}

SampleReader::Row SampleReader::read(int64_t sample, int64_t* inputs, int64_t* targets) const {
  const DocumentSamples::Range range = range_of(sample);
  std::vector<int64_t> tokens(static_cast<size_t>(range.tokens));
  files_->read(range.begin, range.tokens, tokens.data());
  check_ids(*files_, range.begin, range.tokens, tokens.data(), vocab_size_);

  Row row{.counted = range.tokens - 1, .tokens = range.tokens - 1, .document_starts = {}};
  // After the end of a document any input is valid, and id 0 is in every vocabulary.
  std::fill(std::copy_n(tokens.data(), row.counted, inputs), inputs + sequence_length_, 0);
  std::fill(std::copy_n(tokens.data() + 1, row.counted, targets), targets + sequence_length_, kIgnoredTarget);
  leave_out_uncounted(range.begin + 1, row.counted, targets, row);
  if (teacher_) teacher_->read(sample, vocab_size_, row.teacher_ids, row.teacher_log_probs);
  if (!documents_ || document_samples_) return row;
  row.document_starts = {0};
  for (int64_t place : documents_->starts_in(range.begin, range.tokens, tokens.data())) {
    if (std::exchange(targets[place - 1], kIgnoredTarget) != kIgnoredTarget) --row.counted;
    if (place < sequence_length_) row.document_starts.push_back(place);
  }
  return row;
}

/// Ignores targets, tokens [begin, begin + count) of the joined files, that data.train_on excludes.
void SampleReader::leave_out_uncounted(int64_t begin, int64_t count, int64_t* targets, Row& row) const {
  if (train_on_ == TrainOn::kAll) return;
  std::vector<TokenPart> parts(static_cast<size_t>(count));
  files_->read_parts(begin, count, parts.data());
  for (int64_t i = 0; i < count; ++i) {
    if (counts(train_on_, parts[static_cast<size_t>(i)])) continue;
    targets[i] = kIgnoredTarget;
    --row.counted;
  }
}

std::unique_ptr<Samples> open_samples(const SamplesRequest& request) {
  if (const OpenSamples& open = datasets().get(request.options.dataset, "data.dataset")) {
    return std::make_unique<ForeignSamples>(open(request), request);
  }
  if (open_texts()) {
    if (auto texts = open_texts()(request)) return texts;
  }
  if (request.options.preference.is_on()) {
    auto pairs = std::make_unique<PreferenceSamples>(expand_patterns(request.entries), request.options,
                                                     request.vocab_size);
    if (pairs->num_samples() == 0) {
      fail(ErrorKind::kData, pairs->name(), ": in none of ", pairs->left_out(),
           " samples does data.sequence_length = ", request.options.sequence_length,
           " leave tokens of both completions; raise it to the tokens of two whole documents");
    }
    return pairs;
  }
  auto reader =
      std::make_unique<SampleReader>(expand_patterns(request.entries), request.options, request.vocab_size);
  const TokenFiles& files = reader->files();
  // Rows of remote files are checked when they are read.
  if (!files.has_remote() && files.bytes() <= kMaxScannedBytes &&
      files.largest_possible_id() >= request.vocab_size) {
    check_all_ids(files, request.vocab_size);
  }
  return reader;
}

}  // namespace fsdp::data
