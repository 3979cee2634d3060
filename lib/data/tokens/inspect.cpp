#include "data/tokens/inspect.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/util/error.h"
#include "base/util/text.h"
#include "data/tokenizers/tokenizer.h"
#include "data/tokens/token_files.h"

namespace fsdp::data {
namespace {

constexpr int64_t kBeginningTokens = 80;

/// Counts how often each id below kMaxCountedIds occurs.
struct IdCounts {
  std::vector<int64_t> counts;
  int64_t largest = 0;
  int64_t outside_vocabulary = 0;
};

IdCounts count_ids(const TokenFiles& files, int64_t vocab_size) {
  IdCounts result;
  files.scan(0, files.size(), [&](int64_t, const std::vector<int64_t>& ids) {
    for (const int64_t id : ids) {
      result.largest = std::max(result.largest, id);
      if (vocab_size > 0 && id >= vocab_size) ++result.outside_vocabulary;
      if (id >= kMaxCountedIds) continue;
      if (id >= static_cast<int64_t>(result.counts.size())) result.counts.resize(static_cast<size_t>(id) + 1);
      ++result.counts[static_cast<size_t>(id)];
    }
  });
  return result;
}

std::optional<std::string> beginning(const TokenFiles& files, int64_t largest_id,
                                     const Tokenizer& tokenizer) {
  if (largest_id >= tokenizer.vocab_size()) return std::nullopt;
  std::vector<int64_t> ids(static_cast<size_t>(std::min(files.size(), kBeginningTokens)));
  files.read(0, static_cast<int64_t>(ids.size()), ids.data());
  return escaped(tokenizer.decode(ids));
}

}  // namespace

TokenStatistics inspect(const InspectOptions& options) {
  if (options.files.empty()) {
    fail(ErrorKind::kUsage, "no token file was given; name at least one to inspect");
  }
  if (options.sequence_length < 1 || options.vocab_size < 0) {
    fail(ErrorKind::kUsage, "the sequence length (", options.sequence_length,
         ") must be at least 1 and the vocabulary size (", options.vocab_size, ") not negative");
  }
  std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(options.tokenizer);
  TokenFiles files(options.files, options.format);
  TokenStatistics statistics;
  for (size_t i = 0; i < options.files.size(); ++i) {
    const TokenFile& file = files.file(i);
    statistics.files.push_back(
        {file.path(), file.size(), file.format(), file.type(), std::nullopt, std::nullopt, std::nullopt});
    TokenStatistics::File& shown = statistics.files.back();
    if (file.has_documents()) shown.documents = file.documents();
    if (const TokenTurns* turns = file.turns()) {
      shown.documents = turns->count(TokenPart::kDocumentStart);
      shown.last_turn_tokens = turns->count(TokenPart::kLastTurn);
      shown.assistant_tokens = turns->count(TokenPart::kAssistant) + *shown.last_turn_tokens;
    }
  }
  statistics.tokens = files.size();
  IdCounts ids = count_ids(files, options.vocab_size);
  statistics.largest_id = ids.largest;
  statistics.ids_outside_vocabulary = ids.outside_vocabulary;
  if (ids.largest < kMaxCountedIds) {
    double entropy = 0;
    int64_t distinct = 0;
    for (int64_t count : ids.counts) {
      if (count == 0) continue;
      double share = static_cast<double>(count) / static_cast<double>(files.size());
      // This form gives 0, not -0, for a single id.
      entropy += share * std::log(1 / share);
      ++distinct;
    }
    statistics.unigram_entropy_nats = entropy;
    statistics.distinct_ids = distinct;
  }
  statistics.sequence_length = options.sequence_length;
  statistics.samples = (files.size() - 1) / options.sequence_length;
  statistics.beginning = beginning(files, statistics.largest_id, *tokenizer);
  return statistics;
}

std::string to_text(const TokenStatistics& statistics) {
  std::string text;
  auto line = [&text](std::string label, const std::string& value) {
    label.resize(std::max<size_t>(label.size() + 1, 18), ' ');
    text += label + value + "\n";
  };
  for (const auto& file : statistics.files) {
    std::string documents =
        file.documents ? ", " + util::with_commas(*file.documents) + " documents" : std::string();
    if (file.assistant_tokens) {
      documents += ", " + util::with_commas(*file.assistant_tokens) + " tokens of the assistant";
      // In conversations of one turn each, all of them are.
      if (*file.last_turn_tokens != *file.assistant_tokens) {
        documents += " (" + util::with_commas(*file.last_turn_tokens) + " in last turns or chosen answers)";
      }
    }
    line("file", concat(file.path, " (", util::with_commas(file.tokens), " tokens, ", to_string(file.format),
                        ", ", to_string(file.type), documents, ")"));
  }
  line("tokens", util::with_commas(statistics.tokens));
  line("largest id", util::with_commas(statistics.largest_id));
  if (statistics.distinct_ids) line("distinct ids", util::with_commas(*statistics.distinct_ids));
  if (statistics.unigram_entropy_nats) {
    line("unigram entropy", util::fixed(*statistics.unigram_entropy_nats, 4) + " nats per token");
  }
  line("whole samples", util::with_commas(statistics.samples) + " of " +
                            util::with_commas(statistics.sequence_length) + " tokens");
  if (statistics.beginning) line("beginning", "\"" + *statistics.beginning + "\"");
  return text;
}

std::string to_json(const TokenStatistics& statistics) {
  nlohmann::ordered_json files = nlohmann::ordered_json::array();
  for (const auto& file : statistics.files) {
    files.push_back({{"path", file.path},
                     {"tokens", file.tokens},
                     {"format", to_string(file.format)},
                     {"dtype", to_string(file.type)}});
    if (file.documents) files.back()["documents"] = *file.documents;
    if (file.assistant_tokens) files.back()["assistant_tokens"] = *file.assistant_tokens;
    if (file.last_turn_tokens) files.back()["last_turn_tokens"] = *file.last_turn_tokens;
  }
  nlohmann::ordered_json json = {
      {"files", files}, {"tokens", statistics.tokens}, {"largest_id", statistics.largest_id}};
  if (statistics.distinct_ids) json["distinct_ids"] = *statistics.distinct_ids;
  if (statistics.unigram_entropy_nats) json["unigram_entropy_nats"] = *statistics.unigram_entropy_nats;
  json["sequence_length"] = statistics.sequence_length;
  json["samples"] = statistics.samples;
  json["ids_outside_vocabulary"] = statistics.ids_outside_vocabulary;
  if (statistics.beginning) json["beginning"] = *statistics.beginning;
  // A path need not be UTF-8; a replacement character is better than no report.
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

std::string escaped(std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef", kNamed = "\n\t\r\\\"", kNames = "ntr\\\"";
  std::string out;
  for (char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (const size_t named = kNamed.find(c); named != std::string_view::npos) {
      out += {'\\', kNames[named]};
    } else if (byte < 0x20 || byte >= 0x7f) {
      out += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace fsdp::data
