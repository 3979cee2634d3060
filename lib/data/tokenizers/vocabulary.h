#pragma once

// The parts of a Hugging Face tokenizer, and reading them from files.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "data/tokenizers/normalizer.h"

namespace fsdp::data {

struct Vocabulary {
  /// A text that is one token wherever it occurs.
  struct AddedToken {
    std::string content;
    int64_t id = 0;
    bool normalized = false;              ///< whether it is searched in the normalized text, after all others
    bool special = false;                 ///< whether it marks a position, such as the end of a text
    bool lstrip = false, rstrip = false;  ///< whether a match includes the white space before or after it
  };
  /// A pattern that splits texts before bytes are merged.
  struct Split {
    std::string pattern;
    bool literal = false;       ///< whether the pattern is a text, not a regular expression
    bool matches_only = false;  ///< whether text between matches is dropped
  };
  enum class Model {
    kByteLevelBpe,  ///< BPE of bytes: GPT-2, Llama 3, Qwen2
    kCharacterBpe,  ///< BPE of characters: Llama 2, Mistral
    kUnigram,       ///< the most probable pieces: T5
  };
  /// The form in which character models write blanks.
  struct Metaspace {
    enum class Prepend { kNever, kFirst, kAlways };
    std::string blank = "\xe2\x96\x81";  ///< U+2581
    Prepend prepend = Prepend::kAlways;
    bool split = true;  ///< whether each blank begins a piece
  };
  /// The rules by which character models decode ids.
  struct Decoding {
    std::string blank;           ///< text that is decoded as a blank; empty: none
    bool byte_fallback = false;  ///< whether <0x0A> is decoded as a byte
    /// Whether decoding strips, from the beginning of a text, one blank, or all blanks of its first token.
    bool strip_one_blank = false, strip_first_token = false;
  };

  std::string source;  ///< path of the vocabulary, for messages
  Model model = Model::kByteLevelBpe;
  /// Ids by text. Byte-level models write bytes as byte_symbol() (piece_model.h).
  std::unordered_map<std::string, int64_t> tokens;
  std::vector<std::pair<std::string, std::string>> merges;  ///< merges by priority
  bool ranks_are_ids = false;  ///< whether the priority of a merge is the id of the token that it makes
  /// Pieces by id with their log probabilities (kUnigram)
  std::vector<std::pair<std::string, double>> pieces;
  std::vector<AddedToken> added;
  bool split_special_tokens = false;  ///< whether special tokens in texts are ordinary text
  std::vector<NormalizerStep> normalizer;
  std::vector<Split> splits;  ///< patterns of byte-level models; each splits the pieces of the one before
  bool add_prefix_space = false;
  bool ignore_merges = false;  ///< whether a whole piece that is a token is kept as that token
  // The following fields are for character models.
  bool split_at_whitespace = false;  ///< whether texts are split at white space, which is dropped
  std::optional<Metaspace> metaspace;
  /// Whether a character without a token becomes the tokens of its bytes, if all exist.
  bool byte_fallback = false;
  std::optional<int64_t> unknown_id;  ///< token of other characters without a token
  bool fuse_unknown = false;          ///< whether consecutive unknown characters become one token
  Decoding decoding;
  std::string end_of_text;  ///< content of the token that ends a text; empty: none
  /// Tokens before every text, if a file defines them: those of a post-processor, or the config's bos_token.
  std::optional<std::vector<int64_t>> begin_ids;
  std::optional<std::vector<int64_t>> end_ids;  ///< tokens after every text

  /// Returns the id of a token by its content; nothing if there is none.
  std::optional<int64_t> find(const std::string& content) const;
  /// Returns the added tokens that are searched in texts.
  std::vector<AddedToken> matched_tokens() const;
};

/// Whether each token is one character and nothing else is: no merges, no bytes, no token for unknown
/// characters.
bool is_of_characters(const Vocabulary& vocabulary);

/// The split patterns of GPT-2, Llama 3, Qwen2, o200k_base and Mistral's tekken.json.
extern const char* const kGpt2SplitPattern;
extern const char* const kLlama3SplitPattern;
extern const char* const kQwen2SplitPattern;
extern const char* const kO200kSplitPattern;
extern const char* const kTekkenSplitPattern;

/// Reads Hugging Face's tokenizer.json with a model of type BPE or Unigram. Unsupported features that would
/// change ids are refused by name, with Error(kData): other models, normalizers, pre-tokenizers, decoders,
/// options of tokens. Truncation and padding are ignored. The end-of-text token is that of
/// tokenizer_config.json beside it, or one of the usual names. Added tokens in files beside it count too
/// (companions.h).
Vocabulary read_tokenizer_json(const std::filesystem::path& path);
/// Parses the content of such a file.
Vocabulary parse_tokenizer_json(std::string_view text, const std::string& source);

/// Reads the two files to which tokenizers of the classes GPT2Tokenizer and Qwen2Tokenizer are saved:
/// vocab.json (or encoder.json) and merges.txt (or vocab.bpe). The class, which determines how texts are
/// split, is that of tokenizer_config.json beside them, or follows from the model_type of config.json;
/// without either it is GPT-2's. Throws Error(kData) for another class.
Vocabulary read_two_files(const std::filesystem::path& vocabulary, const std::filesystem::path& merges);

/// Returns the vocabulary that a name of make_tokenizer() refers to: bytes, a vocabulary, or the path of a
/// model of SentencePiece, which is not read. Throws as make_tokenizer() does.
struct Bytes {};
using NamedVocabulary = std::variant<Bytes, Vocabulary, std::filesystem::path>;
NamedVocabulary find_vocabulary(const std::string& name);

}  // namespace fsdp::data
