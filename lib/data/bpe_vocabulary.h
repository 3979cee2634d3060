#pragma once

// What a byte-level BPE tokenizer is made of, and the files that it is read from.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace fsdp::data {

struct BpeVocabulary {
  /// A text that is one token wherever it stands.
  struct AddedToken {
    std::string content;
    int64_t id = 0;
    bool normalized = false;  ///< looked for after all that are not
  };
  /// A pattern that splits texts before bytes are merged.
  struct Split {
    std::string pattern;
    bool literal = false;       ///< the pattern is a text, no regular expression
    bool matches_only = false;  ///< what lies between matches is dropped
  };

  std::string source;                                       ///< for messages
  std::unordered_map<std::string, int64_t> tokens;          ///< written in byte_level.h's characters
  std::vector<std::pair<std::string, std::string>> merges;  ///< the first is done first
  std::vector<AddedToken> added;
  std::vector<Split> splits;  ///< each splits what the one before left
  bool add_prefix_space = false;
  bool ignore_merges = false;  ///< a whole piece that is a token is taken as it is
  std::string end_of_text;     ///< content of that token; empty: none
};

/// GPT-2's pattern.
extern const char* const kGpt2SplitPattern;

/// Hugging Face's tokenizer.json with a model of type BPE over bytes. What decides about ids must be
/// understood or is refused by name, with Error(kData): normalizers, other pre-tokenizers, options of tokens.
/// Truncation, padding and what a post-processor adds around a text play no part here. The token that ends a
/// text is that of tokenizer_config.json beside it, or one of the usual names.
BpeVocabulary read_tokenizer_json(const std::filesystem::path& path);
/// The same for the text of such a file.
BpeVocabulary parse_tokenizer_json(std::string_view text, const std::string& source);

/// GPT-2's encoder.json (or vocab.json) and vocab.bpe (or merges.txt).
BpeVocabulary read_gpt2_vocabulary(const std::filesystem::path& vocabulary,
                                   const std::filesystem::path& merges);

}  // namespace fsdp::data
