#include "data/streams/stream_samples.h"

#include <algorithm>
#include <filesystem>
#include <thread>
#include <utility>

#include "base/objects/object_name.h"
#include "base/util/error.h"
#include "base/util/extension.h"
#include "base/util/hash.h"
#include "base/util/system.h"
#include "base/util/text.h"
#include "data/options/text_names.h"
#include "data/texts/text_input.h"
#include "data/tokens/file_patterns.h"
#include "data/tokens/token_files.h"

namespace fsdp::data {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kBlockTokens = 1 << 20;
constexpr int kMostThreads = 16;

/// Refuses what needs the tokens of all documents at once, or token files.
void check_stream_options(const DataOptions& options, const std::string& name) {
  const auto refuse = [&](const std::string& key, const std::string& why) {
    fail(
        ErrorKind::kUsage, key, " needs token files, ", why, ", but ", name,
        " is a text that is tokenized while it is read; write token files with fsdp-data tokenize, or leave ",
        key, " out");
  };
  if (options.documents == DocumentTreatment::kSplit) {
    refuse("data.documents = split", "because rows are counted document by document");
  }
  if (options.max_tokens > 0) refuse("data.max_tokens", "because all rows are sorted by length");
  if (options.train_on != TrainOn::kAll) {
    refuse(concat("data.train_on = ", options.train_on.name()), "which fsdp-data tokenize --chat writes");
  }
  if (options.preference.is_on()) {
    refuse("training.objective", "which fsdp-data tokenize --preference writes");
  }
  if (options.teacher.top_k > 0) {
    refuse("distillation.teacher = stored", "beside which the teacher's tokens are");
  }
}

/// Threads that encode in each process that does. Only one process of a host encodes a text.
int encoding_threads() {
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  return std::clamp(util::cpu_quota().value_or(cores), 1, kMostThreads);
}

StreamOptions stream_options(std::vector<std::string> files, const SamplesRequest& request) {
  const DataOptions& options = request.options;
  check_stream_options(options, files.front());
  const bool shuffle = request.repeats && options.shuffle;
  const int64_t block = shuffle ? options.shuffle_block_size : 1;
  StreamOptions stream{.files = std::move(files),
                       .tokenizer = options.tokenizer,
                       .text_column = options.text_column,
                       .skip_bad = options.skip_bad,
                       .shuffle = shuffle,
                       .seed = request.seed,
                       .folder = fs::path(options.cache_folder) / "streams" / util::host_name(),
                       .block_tokens = kBlockTokens,
                       .threads = encoding_threads()};
  if (options.document_separator >= 0) stream.separator = options.document_separator;
  stream.ahead_tokens = std::max(block * options.sequence_length, 4 * kBlockTokens);
  stream.kept_blocks = 2 * block * options.sequence_length / kBlockTokens + 8;
  // Blocks of less than what is read at a time would be made again and again.
  constexpr int64_t kMostTokenBytes = 4;
  stream.most_cache_bytes =
      std::max(options.cache_gib << 30, 2 * kMostTokenBytes * (2 * stream.ahead_tokens + 4 * kBlockTokens));
  return stream;
}

bool is_text(const std::string& file) {
  std::error_code error;
  // A name in a store without an extension is a folder's.
  const bool is_remote_folder = objects::is_remote(file) && util::extension_of(file).empty();
  return fs::is_directory(file, error) || is_text_name(file) || is_remote_folder;
}

/// Opens the entries of a set that are texts; null if none is.
std::unique_ptr<Samples> open_texts_of(const SamplesRequest& request) {
  const std::vector<std::string> found = expand_patterns(request.entries);
  const auto text = std::ranges::find_if(found, is_text);
  if (text == found.end()) return nullptr;
  const auto other = std::ranges::find_if_not(found, is_text);
  if (other != found.end()) {
    fail(ErrorKind::kUsage, "the files of a data set must all be texts or all be token files, but ", *text,
         " is a text by its name and ", *other,
         " is not; tokenize the texts, or make separate sets of them with data.train_weights");
  }
  return std::make_unique<StreamSamples>(expand_texts(request.entries), request);
}

}  // namespace

StreamSamples::StreamSamples(std::vector<std::string> files, const SamplesRequest& request)
    : length_(request.options.sequence_length),
      vocab_size_(request.vocab_size),
      shuffle_(request.repeats && request.options.shuffle),
      masks_(request.options.documents == DocumentTreatment::kMask),
      block_size_(request.options.shuffle_block_size),
      seed_(util::hash_of(request.seed, "samples of texts")),
      stream_(stream_options(std::move(files), request)) {
  if (stream_.vocab_size() > vocab_size_) {
    fail(ErrorKind::kUsage, "model.vocab_size must be at least ", stream_.vocab_size(),
         ", the number of tokens of data.tokenizer ", request.options.tokenizer, ", but is ", vocab_size_,
         "; set model.vocab_size = ", stream_.vocab_size(),
         ", or set data.tokenizer to the tokenizer of this model");
  }
  num_samples_ = request.repeats ? kEndless : samples_of(stream_.count_pass());
}

/// Returns the samples of a pass of so many tokens. A training set must have one.
int64_t StreamSamples::samples_of(int64_t tokens) const { return std::max<int64_t>(tokens - 1, 0) / length_; }

std::optional<int64_t> StreamSamples::known_pass() const {
  const auto tokens = stream_.pass_tokens();
  return tokens ? std::optional(samples_of(*tokens)) : std::nullopt;
}

int64_t StreamSamples::count_pass() const { return samples_of(stream_.count_pass()); }

/// Returns the place of a sample in a pass of so many samples, or one that has not ended.
StreamSamples::PassSample StreamSamples::within_pass(int64_t pass, int64_t index,
                                                     std::optional<int64_t> samples) const {
  if (!shuffle_) return {.pass = pass, .sample = index, .block_begin = index, .block_size = 1};
  const int64_t begin = index / block_size_ * block_size_;
  return {.pass = pass,
          .sample = index,
          .block_begin = begin,
          .block_size = samples ? std::min(block_size_, *samples - begin) : block_size_};
}

/// Returns where a sample of the endless order is. Its whole block is there then.
StreamSamples::PassSample StreamSamples::place_of(int64_t index) const {
  std::optional<int64_t> samples = known_pass();
  PassSample place;
  while (true) {
    if (samples && *samples == 0) {
      fail(ErrorKind::kData, "the texts from ", name(), " on have ", *stream_.pass_tokens(),
           " tokens, but a sample of data.sequence_length = ", length_, " needs ", length_ + 1,
           "; use more text or lower data.sequence_length");
    }
    place = samples ? within_pass(index / *samples, index % *samples, samples)
                    : within_pass(0, index, std::nullopt);
    const int64_t end = (place.block_begin + place.block_size) * length_;
    stream_.look_ahead(place.pass, end);
    if (stream_.has_token(place.pass, end)) return place;
    FSDP_CHECK(!samples, "sample ", index, " of ", *samples);
    samples = known_pass();
  }
}

Samples::Row StreamSamples::read(int64_t sample, int64_t* inputs, int64_t* targets) const {
  const PassSample place = place_of(sample);
  int64_t chosen = place.sample;
  if (shuffle_) {
    const uint64_t key = util::mix64(util::mix64(seed_ ^ static_cast<uint64_t>(place.pass)) ^
                                     static_cast<uint64_t>(place.block_begin));
    const SampleOrder order(place.block_size, /*shuffle=*/true, key);
    chosen = place.block_begin + order.sample(place.sample - place.block_begin);
  }
  std::vector<int64_t> tokens(static_cast<size_t>(length_ + 1)), starts;
  stream_.read(place.pass, chosen * length_, length_ + 1, tokens.data(), starts);
  for (const int64_t token : tokens) {
    if (token < vocab_size_) continue;
    fail(ErrorKind::kData, "tokens must be less than model.vocab_size = ", vocab_size_, ", but found ", token,
         " in the texts from ", name(), " on; ", remedy_for_id(token));
  }
  std::copy_n(tokens.data(), length_, inputs);
  std::copy_n(tokens.data() + 1, length_, targets);
  Row row{.counted = length_, .tokens = length_};
  if (!masks_) return row;
  row.document_starts = {0};
  for (const int64_t start : starts) {
    if (start == 0) continue;
    if (std::exchange(targets[start - 1], kIgnoredTarget) != kIgnoredTarget) --row.counted;
    if (start < length_) row.document_starts.push_back(start);
  }
  return row;
}

nlohmann::json StreamSamples::state(int64_t sample) const {
  const std::optional<int64_t> samples = known_pass();
  if (samples && *samples == 0) return nullptr;
  const PassSample place = samples ? within_pass(sample / *samples, sample % *samples, samples)
                                   : within_pass(0, sample, std::nullopt);
  return stream_.state(place.pass, place.block_begin * length_);
}

void read_texts_as_data_sets() { open_texts() = open_texts_of; }

}  // namespace fsdp::data
