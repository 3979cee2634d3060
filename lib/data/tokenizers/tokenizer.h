#pragma once

// Tokenizers: from text to token ids and back.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::data {

/// Thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::string name() const = 0;
  /// Ids are 0 to vocab_size() - 1.
  virtual int64_t vocab_size() const = 0;

  /// Appends the ids of `text`, a whole text: nothing follows it.
  virtual void encode(std::string_view text, std::vector<int64_t>& ids) const = 0;

  /// For reading a text in pieces. Encodes the beginning of a text whose continuation is not known yet, up to
  /// the first place at or after `stop` where the text may be cut, and returns that place: the ids appended
  /// here, followed by those of the rest encoded as a text by itself, are the ids of the whole. When `text`
  /// does not reach far enough, the place is before `stop`, at worst 0. Call again with the rest and more
  /// text behind it, or encode() for the last piece.
  ///
  /// By default texts are never cut, as where normalization looks at a text as a whole.
  virtual size_t encode_some(std::string_view /*text*/, size_t /*stop*/,
                             std::vector<int64_t>& /*ids*/) const {
    return 0;
  }

  /// The last place in `text` that can be found quickly where encode_some() will most likely find that the
  /// text may be cut; 0 when texts are never cut. Only a guess, so that several threads can begin at once.
  virtual size_t likely_cut(std::string_view /*text*/) const { return 0; }

  /// The bytes that a token stands for: not always whole characters. Nothing for a token that only marks a
  /// place (as SentencePiece's <s> does), and for an id in a gap of the vocabulary. `begins`: no token that stands for bytes came before. Throws
  /// Error(kData) for an id outside the vocabulary.
  virtual std::optional<std::string> bytes_of(int64_t id, bool begins) const = 0;

  /// Throws Error(kData) for an id outside the vocabulary.
  virtual std::string decode(const std::vector<int64_t>& ids) const;

  /// The tokens that the tokenizer's author puts before every text, which encode() does not append. Often one, bos.
  virtual std::vector<int64_t> begin_of_text() const { return {}; }
  /// The token that ends a text, where there is one.
  virtual std::optional<int64_t> end_of_text() const { return std::nullopt; }
  /// The id of a token by its text, as vocabularies write it ("<|endoftext|>").
  virtual std::optional<int64_t> id_of(const std::string& /*token*/) const { return std::nullopt; }
};

/// Decodes tokens one by one, for text that is shown while it grows: returns whole characters only. Not
/// thread-safe; the tokenizer must outlive it.
class TextDecoder {
 public:
  explicit TextDecoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  /// The characters that this token completes. Bytes that can be no part of a character come out as they are.
  std::string push(int64_t id);
  /// The rest: the beginning of a character that was never completed.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  std::string pending_;
  bool begins_ = true;
};

/// How many bytes of text tokens stand for: a loss per token depends on the tokenizer, a loss per byte does
/// not.
class TokenBytes {
 public:
  /// Calls bytes_of() once for every id.
  explicit TokenBytes(const Tokenizer& tokenizer);

  /// Bytes of the text that `length` ids stand for; ids below 0 count as none. Nothing when an id is not in
  /// the vocabulary: the tokens are of another tokenizer.
  std::optional<int64_t> count(const int64_t* ids, int64_t length) const;

 private:
  std::vector<int32_t> bytes_;  ///< [vocabulary]
};

/// What make_tokenizer() accepts, for messages and --help.
inline constexpr const char* kTokenizerChoices =
    "bytes; a tokenizer.json of Hugging Face (BPE, Unigram); a folder that contains one, "
    "or vocab.json and merges.txt (GPT-2, Qwen2), or encoder.json and vocab.bpe; a "
    "tekken.json of Mistral; a .tiktoken or tokenizer.model of cl100k_base, o200k_base, Llama 3 or Qwen; a "
    ".model of SentencePiece";

struct TokenizerOptions {
  /// The name of a special token in a text is ordinary text, not that token (Hugging Face's option of this
  /// name). For the tokenizers of bytes, and of a SentencePiece model without files beside it, it always is.
  bool split_special_tokens = false;
};

/// "bytes": an id is the value of a byte, vocabulary 256. Otherwise the path of a vocabulary
/// (kTokenizerChoices). Throws Error(kUsage) when it is neither, and Error(kData) for a vocabulary that
/// cannot be read or needs a feature that is not supported, which would give other ids than its author's.
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name, const TokenizerOptions& options = {});

}  // namespace fsdp::data
