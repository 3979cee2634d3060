#pragma once

// Tokenizers, which convert text to token ids and back.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::data {

/// A tokenizer. Thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::string name() const = 0;
  /// Number of ids, which are 0 to vocab_size() - 1.
  virtual int64_t vocab_size() const = 0;

  /// Appends the ids of `text`, which is a whole text.
  virtual void encode(std::string_view text, std::vector<int64_t>& ids) const = 0;

  /// Encodes the beginning of a text whose continuation is not known yet, up to the first position at or
  /// after `stop` where the text may be cut, and returns that position. The ids appended here, followed by
  /// those of the rest encoded as a text by itself, are the ids of the whole text. If `text` is too short to
  /// decide, the position is before `stop`, at worst 0. Call it again with the rest and more text, or
  /// encode() with the last piece.
  ///
  /// By default texts are never cut, as when normalization depends on the whole text.
  virtual size_t encode_some(std::string_view /*text*/, size_t /*stop*/,
                             std::vector<int64_t>& /*ids*/) const {
    return 0;
  }

  /// Returns the last position in `text` that can be found quickly and at which encode_some() will probably
  /// allow a cut; 0 if texts are never cut. This is only a guess, so that several threads can begin at once.
  virtual size_t likely_cut(std::string_view /*text*/) const { return 0; }

  /// Returns the bytes of a token, which are not always whole characters. Nothing for a token that only marks
  /// a position (such as SentencePiece's <s>), and for an id in a gap of the vocabulary. `begins` is whether
  /// no earlier token had bytes. Throws Error(kData) for an id outside the vocabulary.
  virtual std::optional<std::string> bytes_of(int64_t id, bool begins) const = 0;

  /// Returns the text of the ids. Throws Error(kData) for an id outside the vocabulary.
  virtual std::string decode(const std::vector<int64_t>& ids) const;

  /// The tokens that the author puts before every text (often bos), which encode() does not append.
  virtual std::vector<int64_t> begin_of_text() const { return {}; }
  /// The token that ends a text, if there is one.
  virtual std::optional<int64_t> end_of_text() const { return std::nullopt; }
  /// Returns the id of a token by its text, as vocabularies write it ("<|endoftext|>").
  virtual std::optional<int64_t> id_of(const std::string& /*token*/) const { return std::nullopt; }
};

/// Decodes tokens one by one into whole characters, for text that is shown while it grows. Not thread-safe.
/// Requires: the tokenizer outlives the object.
class TextDecoder {
 public:
  explicit TextDecoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  /// Returns the characters that this token completes, and bytes that cannot be part of a character.
  std::string push(int64_t id);
  /// Returns the remaining bytes: the beginning of a character that was never completed.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  std::string pending_;
  bool begins_ = true;
};

/// Counts tokens' bytes of text: unlike a loss per token, a loss per byte does not depend on the tokenizer.
class TokenBytes {
 public:
  /// Calls bytes_of() once for every id.
  explicit TokenBytes(const Tokenizer& tokenizer);

  /// Returns the bytes of text that `length` ids represent; ids below 0 count as none. Nothing if an id is
  /// not in the vocabulary, because the tokens are from another tokenizer.
  std::optional<int64_t> count(const int64_t* ids, int64_t length) const;

 private:
  std::vector<int32_t> bytes_;  ///< bytes of each token: [vocabulary]
};

/// Text about the names that make_tokenizer() accepts, for messages and --help.
inline constexpr const char* kTokenizerChoices =
    "bytes; a tokenizer.json of Hugging Face (BPE, Unigram, characters); a folder that contains one, "
    "or vocab.json and merges.txt (GPT-2, Qwen2), or encoder.json and vocab.bpe; a "
    "tekken.json of Mistral; a .tiktoken or tokenizer.model of cl100k_base, o200k_base, Llama 3 or Qwen; a "
    ".model of SentencePiece; a GGUF file";

struct TokenizerOptions {
  /// Whether the name of a special token in a text is ordinary text, not that token (Hugging Face's option of
  /// this name). It always is for the tokenizer of bytes, and for a SentencePiece model without files beside
  /// it.
  bool split_special_tokens = false;
};

/// Returns the tokenizer of a name. "bytes" is the tokenizer whose ids are the values of bytes, vocabulary
/// 256. Other names are the path of a vocabulary (kTokenizerChoices). Throws Error(kUsage) if the name is
/// neither, and Error(kData) for a vocabulary that cannot be read or needs an unsupported feature, which
/// would give other ids than its author's.
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name, const TokenizerOptions& options = {});

}  // namespace fsdp::data
