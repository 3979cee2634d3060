#include "data/tokens/preference_samples.h"

#include <algorithm>
#include <utility>

#include "base/util/error.h"
#include "data/tokens/data_identity.h"
#include "data/tokens/documents.h"
#include "data/tokens/stored_reference.h"

namespace fsdp::data {
namespace {

/// Documents that a sample takes from the files.
int64_t documents_a_sample(const PreferenceOptions& options) {
  return options.rows == PreferenceRows::kPairs ? 2 : 1;
}

constexpr const char* kRemedy = "create the file with fsdp-data tokenize --preference";

/// Returns the number of tokens at which two documents are cut so that both fit `room` inputs. The last token
/// of a document is only a target.
int64_t limit_of(int64_t one, int64_t other, int64_t room) {
  const int64_t shorter = std::min(one, other), longer = std::max(one, other);
  if (shorter - 1 + longer - 1 <= room) return longer;
  return std::max(room / 2, room - (shorter - 1)) + 1;
}

}  // namespace

PreferenceSamples::PreferenceSamples(const std::vector<std::string>& paths, const DataOptions& options,
                                     int64_t vocab_size)
    : options_(options.preference),
      sequence_length_(options.sequence_length),
      vocab_size_(vocab_size),
      files_(paths) {
  for (size_t i = 0; i < files_.paths().size(); ++i) {
    if (files_.file(i).turns() != nullptr) continue;
    fail(ErrorKind::kData, "training.objective needs token files of preferences, but ", files_.file(i).path(),
         " has no companion ", turns_path(files_.file(i).path()).filename().string(), "; ", kRemedy);
  }
  find_documents();
  choose_samples();
  if (options_.stored_reference) read_references();
}

std::string PreferenceSamples::described(int64_t document) const {
  const TokenFiles::Position place = files_.locate(documents_[static_cast<size_t>(document)].begin);
  int64_t number = document + 1;
  while (number > 1 &&
         files_.locate(documents_[static_cast<size_t>(document - number + 1)].begin).path != place.path) {
    --number;
  }
  return concat("document ", number, " of ", place.path);
}

void PreferenceSamples::find_documents() {
  std::vector<TokenPart> parts;
  Documents(files_, std::nullopt).for_each([&](int64_t begin, int64_t end) {
    parts.resize(static_cast<size_t>(end - begin));
    files_.read_parts(begin, end - begin, parts.data());
    const bool preferred = std::ranges::find(parts, TokenPart::kLastTurn) != parts.end();
    const bool other = std::ranges::find(parts, TokenPart::kAssistant) != parts.end();
    const auto first = std::ranges::find_if(
        parts, [](TokenPart part) { return part == TokenPart::kLastTurn || part == TokenPart::kAssistant; });
    documents_.push_back(
        {.begin = begin, .tokens = end - begin, .completion = first - parts.begin(), .preferred = preferred});
    if (preferred == other) {
      fail(ErrorKind::kData, described(num_documents() - 1),
           " must be a completion that is preferred or one that is not, but is ",
           preferred ? "a conversation with several turns of the assistant" : "a text without a completion",
           "; ", kRemedy);
    }
  });
  if (options_.rows != PreferenceRows::kPairs) return;
  for (int64_t i = 0; i < num_documents(); ++i) {
    if (documents_[static_cast<size_t>(i)].preferred == (i % 2 == 0)) continue;
    fail(ErrorKind::kData, "training.objective compares pairs of a chosen and a rejected document, but ",
         described(i), " is ", i % 2 == 0 ? "not a chosen" : "not a rejected", " one; ", kRemedy,
         " from rows of pairs, or set training.objective = \"kto\" for completions with a label");
  }
  if (num_documents() % 2 != 0) {
    fail(ErrorKind::kData, "training.objective compares pairs, but ", described(num_documents() - 1),
         " is chosen and has no rejected one after it; ", kRemedy);
  }
}

/// Returns the document whose completion a document's prompt also gets: the one before it, and for the first
/// of those that are exchanged the last.
int64_t PreferenceSamples::exchanged_with(int64_t document) const {
  const int64_t all = num_documents(), group = options_.exchanged_rows > 0 ? options_.exchanged_rows : all;
  const int64_t first = document / group * group;
  return document > first ? document - 1 : std::min(first + group, all) - 1;
}

std::vector<PreferenceSamples::Part> PreferenceSamples::parts_of(int64_t first) const {
  const Document& own = documents_[static_cast<size_t>(first)];
  const auto other =
      static_cast<size_t>(options_.rows == PreferenceRows::kPairs ? first + 1 : exchanged_with(first));
  const Document& second = documents_[other];
  return {{&own, &own}, {options_.rows == PreferenceRows::kPairs ? &second : &own, &second}};
}

void PreferenceSamples::choose_samples() {
  for (int64_t first = 0; first < num_documents(); first += documents_a_sample(options_)) {
    const std::vector<Part> parts = parts_of(first);
    const Sample sample{.first = first,
                        .limit = limit_of(parts[0].tokens(), parts[1].tokens(), sequence_length_)};
    const bool remains = std::ranges::all_of(parts, [&](const Part& part) {
      return part.prompt->completion < std::min(part.tokens(), sample.limit);
    });
    if (!remains) {
      ++left_out_;
      continue;
    }
    samples_.push_back(sample);
    cut_ += std::ranges::count_if(parts, [&](const Part& part) { return part.tokens() > sample.limit; });
  }
}

int64_t PreferenceSamples::length(int64_t sample) const {
  const Sample& chosen = samples_[static_cast<size_t>(sample)];
  int64_t length = 0;
  for (const Part& part : parts_of(chosen.first)) length += std::min(part.tokens(), chosen.limit) - 1;
  return length;
}

void PreferenceSamples::append(const Part& part, const Sample& sample, int64_t* inputs, int64_t* targets,
                               Row& row) const {
  const int64_t count = std::min(part.tokens(), sample.limit), prompt = part.prompt->completion;
  std::vector<int64_t> ids(static_cast<size_t>(count));
  std::vector<TokenPart> parts(static_cast<size_t>(count), TokenPart::kContext);
  const auto copy = [&](int64_t begin, int64_t tokens, int64_t to) {
    files_.read(begin, tokens, ids.data() + to);
    check_ids(files_, begin, tokens, ids.data() + to, vocab_size_);
  };
  copy(part.prompt->begin, prompt, 0);
  const int64_t completion = part.completion->begin + part.completion->completion;
  copy(completion, count - prompt, prompt);
  files_.read_parts(completion, count - prompt, parts.data() + prompt);

  ScoredDocument document{
      .begin = row.tokens, .end = row.tokens + count - 1, .preferred = part.completion->preferred};
  const bool learns_prompt = options_.prompts_count && document.preferred;
  for (int64_t i = 0; i + 1 < count; ++i) {
    const TokenPart of_target = parts[static_cast<size_t>(i + 1)];
    const bool completes = of_target == TokenPart::kLastTurn || of_target == TokenPart::kAssistant;
    inputs[row.tokens + i] = ids[static_cast<size_t>(i)];
    targets[row.tokens + i] = completes || learns_prompt ? ids[static_cast<size_t>(i + 1)] : kIgnoredTarget;
    document.completes.push_back(completes);
  }
  row.document_starts.push_back(row.tokens);
  row.tokens = document.end;
  row.documents.push_back(std::move(document));
}

Samples::Row PreferenceSamples::read(int64_t sample, int64_t* inputs, int64_t* targets) const {
  const Sample& chosen = samples_[static_cast<size_t>(sample)];
  Row row{.counted = 1, .tokens = 0};
  std::fill_n(inputs, sequence_length_, 0);
  std::fill_n(targets, sequence_length_, kIgnoredTarget);
  for (const Part& part : parts_of(chosen.first)) append(part, chosen, inputs, targets, row);
  row.documents[1].exchanged = options_.rows == PreferenceRows::kSingle;
  for (size_t i = 0; i < 2 && !references_.empty(); ++i) {
    const auto first = static_cast<size_t>(chosen.first);
    row.documents[i].reference =
        references_[options_.rows == PreferenceRows::kPairs ? first + i : 2 * first + i];
  }
  return row;
}

std::string PreferenceSamples::note() const {
  if (left_out_ + cut_ == 0) return {};
  return concat(name(), ": of ", num_samples() + left_out_, " samples ", left_out_, " are left out and ",
                cut_, " documents are cut at data.sequence_length = ", sequence_length_);
}

nlohmann::json PreferenceSamples::identity() const { return identity_of(files_); }

void PreferenceSamples::read_references() {
  const int64_t count = num_documents() * (options_.rows == PreferenceRows::kPairs ? 1 : 2);
  references_ =
      read_stored_reference(files_, stored_reference_key(files_, options_, sequence_length_), count);
}

}  // namespace fsdp::data
