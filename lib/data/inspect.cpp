#include "data/inspect.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "data/token_files.h"
#include "data/tokenizer.h"
#include "util/error.h"
#include "util/text.h"

namespace fsdp::data {
namespace {

constexpr int64_t kChunkTokens = 1 << 19;
constexpr int64_t kBeginningTokens = 80;

std::vector<int64_t> count_ids(const TokenFiles& files) {
  std::vector<int64_t> counts(kMaxVocabSize, 0);
  std::vector<uint16_t> chunk(static_cast<size_t>(std::min(files.size(), kChunkTokens)));
  for (int64_t begin = 0; begin < files.size(); begin += kChunkTokens) {
    int64_t count = std::min(kChunkTokens, files.size() - begin);
    files.read(begin, count, chunk.data());
    files.release(begin, count);
    for (int64_t i = 0; i < count; ++i) ++counts[chunk[static_cast<size_t>(i)]];
  }
  return counts;
}

std::optional<std::string> byte_beginning(const TokenFiles& files, int64_t largest_id) {
  auto bytes = make_tokenizer("bytes");
  if (largest_id >= bytes->vocab_size()) return std::nullopt;
  std::vector<int64_t> ids(static_cast<size_t>(std::min(files.size(), kBeginningTokens)));
  files.read(0, static_cast<int64_t>(ids.size()), ids.data());
  return escaped(bytes->decode(ids));
}

}  // namespace

TokenStatistics inspect(const InspectOptions& options) {
  if (options.files.empty()) {
    util::fail(util::ErrorKind::kUsage, "no token file was given; name at least one to inspect");
  }
  if (options.sequence_length < 1 || options.vocab_size < 0) {
    util::fail(util::ErrorKind::kUsage, "the sequence length (", options.sequence_length,
               ") must be at least 1 and the vocabulary size (", options.vocab_size, ") not negative");
  }
  TokenFiles files(options.files);
  TokenStatistics statistics;
  for (size_t i = 0; i < options.files.size(); ++i) {
    statistics.files.push_back({options.files[i], files.file_size(i)});
  }
  statistics.tokens = files.size();
  std::vector<int64_t> counts = count_ids(files);
  for (int64_t id = 0; id < kMaxVocabSize; ++id) {
    int64_t count = counts[static_cast<size_t>(id)];
    if (count == 0) continue;
    double share = static_cast<double>(count) / static_cast<double>(files.size());
    // Written so that a single id gives 0, not -0.
    statistics.unigram_entropy_nats += share * std::log(1 / share);
    statistics.largest_id = id;
    ++statistics.distinct_ids;
    if (options.vocab_size > 0 && id >= options.vocab_size) statistics.ids_outside_vocabulary += count;
  }
  statistics.sequence_length = options.sequence_length;
  statistics.samples = (files.size() - 1) / options.sequence_length;
  statistics.beginning = byte_beginning(files, statistics.largest_id);
  return statistics;
}

std::string to_text(const TokenStatistics& statistics) {
  std::string text;
  auto line = [&text](std::string label, const std::string& value) {
    label.resize(std::max<size_t>(label.size() + 1, 18), ' ');
    text += label + value + "\n";
  };
  for (const auto& file : statistics.files) {
    line("file", file.path + " (" + util::with_commas(file.tokens) + " tokens)");
  }
  line("tokens", util::with_commas(statistics.tokens));
  line("largest id", util::with_commas(statistics.largest_id));
  line("distinct ids", util::with_commas(statistics.distinct_ids));
  line("unigram entropy", util::fixed(statistics.unigram_entropy_nats, 4) + " nats a token");
  line("whole samples", util::with_commas(statistics.samples) + " of " +
                            util::with_commas(statistics.sequence_length) + " tokens");
  if (statistics.beginning) line("beginning", "\"" + *statistics.beginning + "\"");
  return text;
}

std::string to_json(const TokenStatistics& statistics) {
  nlohmann::ordered_json json;
  json["files"] = nlohmann::ordered_json::array();
  for (const auto& file : statistics.files) {
    nlohmann::ordered_json entry;
    entry["path"] = file.path;
    entry["tokens"] = file.tokens;
    json["files"].push_back(std::move(entry));
  }
  json["tokens"] = statistics.tokens;
  json["largest_id"] = statistics.largest_id;
  json["distinct_ids"] = statistics.distinct_ids;
  json["unigram_entropy_nats"] = statistics.unigram_entropy_nats;
  json["sequence_length"] = statistics.sequence_length;
  json["samples"] = statistics.samples;
  json["ids_outside_vocabulary"] = statistics.ids_outside_vocabulary;
  if (statistics.beginning) json["beginning"] = *statistics.beginning;
  // A path need not be UTF-8; a replacement character is better than no report.
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

std::string escaped(std::string_view text) {
  static const char kHex[] = "0123456789abcdef";
  std::string out;
  for (char c : text) {
    auto byte = static_cast<unsigned char>(c);
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\\' || c == '"') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte >= 0x7f) {
      out += "\\x";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace fsdp::data
