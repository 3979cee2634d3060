#pragma once

// What a tokenizer of Hugging Face is made of, and the files that it is read from.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "data/normalizer.h"

namespace fsdp::data {

struct Vocabulary {
  /// A text that is one token wherever it stands.
  struct AddedToken {
    std::string content;
    int64_t id = 0;
    bool normalized = false;  ///< looked for in the normalized text, after all that are not
    bool special = false;     ///< marks a place, such as the end of a text
  };
  /// A pattern that splits texts before bytes are merged.
  struct Split {
    std::string pattern;
    bool literal = false;       ///< the pattern is a text, no regular expression
    bool matches_only = false;  ///< what lies between matches is dropped
  };
  enum class Model {
    kByteLevelBpe,  ///< BPE of bytes (bpe_tokenizer.h): GPT-2, Llama 3, Qwen2
    kCharacterBpe,  ///< BPE of characters (metaspace_tokenizer.h): Llama 2, Mistral
    kUnigram,       ///< the most probable pieces (metaspace_tokenizer.h): T5
  };
  /// How character models write blanks.
  struct Metaspace {
    enum class Prepend { kNever, kFirst, kAlways };
    std::string blank = "\xe2\x96\x81";  ///< U+2581
    Prepend prepend = Prepend::kAlways;
    bool split = true;  ///< each blank begins a piece
  };
  /// How ids become text again, for character models.
  struct Decoding {
    std::string blank;           ///< stands for a blank; empty: nothing does
    bool byte_fallback = false;  ///< <0x0A> is a byte
    /// What is taken away from the beginning of a text: one blank, or all that its first token has.
    bool strip_one_blank = false, strip_first_token = false;
  };

  std::string source;  ///< for messages
  Model model = Model::kByteLevelBpe;
  /// Byte-level models write them in byte_level.h's characters.
  std::unordered_map<std::string, int64_t> tokens;
  std::vector<std::pair<std::string, std::string>> merges;  ///< the first is done first
  std::vector<std::pair<std::string, double>> pieces;  ///< kUnigram: by id, with logarithms of their shares
  std::vector<AddedToken> added;
  bool split_special_tokens = false;  ///< special tokens are not looked for in texts
  std::vector<NormalizerStep> normalizer;
  std::vector<Split> splits;  ///< byte-level models: each splits what the one before left
  bool add_prefix_space = false;
  bool ignore_merges = false;  ///< a whole piece that is a token is taken as it is
  // Of character models:
  bool split_at_whitespace = false;  ///< which is dropped
  std::optional<Metaspace> metaspace;
  bool byte_fallback = false;  ///< a character that is no token is tokens of its bytes, if all are there
  std::optional<int64_t> unknown_id;  ///< else it is this
  bool fuse_unknown = false;          ///< several that follow each other are one
  Decoding decoding;
  std::string end_of_text;  ///< content of that token; empty: none

  /// The added tokens that are looked for in texts.
  std::vector<AddedToken> matched_tokens() const;
};

/// GPT-2's pattern, and Qwen2's.
extern const char* const kGpt2SplitPattern;
extern const char* const kQwen2SplitPattern;

/// Hugging Face's tokenizer.json with a model of type BPE or Unigram. What decides about ids must be
/// understood or is refused by name, with Error(kData): other models, normalizers, pre-tokenizers, decoders,
/// options of tokens. Truncation, padding and what a post-processor adds around a text play no part here. The
/// token that ends a text is that of tokenizer_config.json beside it, or one of the usual names.
Vocabulary read_tokenizer_json(const std::filesystem::path& path);
/// The same for the text of such a file.
Vocabulary parse_tokenizer_json(std::string_view text, const std::string& source);

/// The two files that tokenizers of classes GPT2Tokenizer and Qwen2Tokenizer are saved to: vocab.json (or
/// encoder.json) and merges.txt (or vocab.bpe). The class, which decides how texts are split, is that of
/// tokenizer_config.json beside them, or follows from the model_type of config.json; without either it is
/// GPT-2's. Throws Error(kData) for another class, by name.
Vocabulary read_two_files(const std::filesystem::path& vocabulary, const std::filesystem::path& merges);

}  // namespace fsdp::data
