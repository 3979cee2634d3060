#pragma once

// Statistics of token files.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokens/token_format.h"

namespace fsdp::data {

/// Ids below this limit are counted one by one.
inline constexpr int64_t kMaxCountedIds = int64_t{1} << 24;

struct InspectOptions {
  std::vector<std::string> files;  ///< files, read as if they were joined
  int64_t vocab_size = 0;          ///< number of valid ids; larger ids are counted; 0: no limit
  int64_t sequence_length = 256;
  std::string tokenizer = "bytes";                   ///< tokenizer that decodes the beginning
  std::optional<TokenFormat> format = std::nullopt;  ///< format that the files must have; nothing: any
};

struct TokenStatistics {
  struct File {
    std::string path;
    int64_t tokens = 0;
    TokenFormat format = TokenFormat::kU16;
    TokenType type = TokenType::kUint16;
    std::optional<int64_t> documents;  ///< number of documents, if the format or a companion records them
    std::optional<int64_t> assistant_tokens;  ///< assistant's tokens in conversations (token_turns.h)
    /// Those of last turns or, in a file of preferences, of chosen answers.
    std::optional<int64_t> last_turn_tokens;
  };
  std::vector<File> files;
  int64_t tokens = 0;
  int64_t largest_id = 0;
  /// Number of distinct ids. Absent, like the entropy, if an id is kMaxCountedIds or more.
  std::optional<int64_t> distinct_ids;
  /// Entropy of the ids' frequencies: the loss (nats per token) of a model that knows only the frequencies.
  std::optional<double> unigram_entropy_nats;
  int64_t sequence_length = 0;
  int64_t samples = 0;  ///< number of whole samples of sequence_length
  /// The first tokens as escaped ASCII; absent if an id is not in the tokenizer's vocabulary.
  std::optional<std::string> beginning;
  int64_t ids_outside_vocabulary = 0;
};

/// Computes the statistics in one pass over the files. Throws Error(kData) for a file that cannot be used.
TokenStatistics inspect(const InspectOptions& options);

std::string to_text(const TokenStatistics& statistics);
/// Returns one JSON object with the names of the fields above.
std::string to_json(const TokenStatistics& statistics);

/// Escapes text: printable ASCII is unchanged, \n, \t, \r, \\ and \" are by name, every other byte is \xNN.
std::string escaped(std::string_view text);

}  // namespace fsdp::data
