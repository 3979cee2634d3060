#pragma once

// Tokenizers made of a Vocabulary, as Hugging Face's tokenizers runs them.

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "data/tokenizers/tokenizer.h"
#include "data/tokenizers/vocabulary.h"

namespace fsdp::data {

/// Returns a tokenizer of byte-level BPE: GPT-2's, Llama 3's and Qwen2's among others. Added tokens are cut
/// out. The text between them is converted to the tokenizer's normalization form, if any, and split by
/// patterns, and each piece is merged.
///
/// Each byte that is not UTF-8 is a token, so that every text can be decoded from its ids.
std::unique_ptr<Tokenizer> make_bpe_tokenizer(const Vocabulary& vocabulary);

/// Returns a tokenizer over characters, which writes blanks as U+2581: BPE with bytes for characters without
/// a token (Llama 2, Mistral) or Unigram (T5). Added tokens are cut out, the text between them is normalized
/// and split at blanks, and the model encodes each piece.
///
/// Each byte that is not UTF-8 is a token if the vocabulary has tokens of bytes, otherwise unknown.
std::unique_ptr<Tokenizer> make_metaspace_tokenizer(const Vocabulary& vocabulary);

/// Returns a tokenizer whose tokens are characters. Requires: is_of_characters(vocabulary). Encoding throws
/// Error(kData) for a character without a token.
std::unique_ptr<Tokenizer> make_character_tokenizer(const Vocabulary& vocabulary);

/// Returns the tokenizer that the vocabulary requires: one of those above.
std::unique_ptr<Tokenizer> make_tokenizer(const Vocabulary& vocabulary);

/// Base class of these tokenizers: the tokens by id and by name.
class VocabularyTokenizer : public Tokenizer {
 public:
  std::string name() const override { return name_; }
  int64_t vocab_size() const override { return static_cast<int64_t>(bytes_.size()); }
  std::optional<std::string> bytes_of(int64_t id, bool begins) const override;
  std::vector<int64_t> begin_of_text() const override { return begin_of_text_; }
  std::optional<int64_t> end_of_text() const override { return end_of_text_; }
  std::optional<int64_t> id_of(const std::string& token) const override;

 protected:
  explicit VocabularyTokenizer(const Vocabulary& vocabulary);

  /// Sets the bytes of an id, and those of the id at the beginning of a text if they differ.
  void keep(int64_t id, std::string bytes, std::optional<std::string> first = std::nullopt);

 private:
  std::string name_;
  std::unordered_map<std::string, int64_t> ids_;  ///< ids of the tokens, as the vocabulary writes them
  std::vector<int64_t> begin_of_text_;
  std::optional<int64_t> end_of_text_;
  std::vector<std::optional<std::string>> bytes_;  ///< bytes by id; nothing in a gap of the vocabulary
  std::unordered_map<int64_t, std::string> first_bytes_;
};

/// Objects that one thread at a time uses. Threads take and return them, so that there are as many as were
/// ever used at once. Thread-safe.
template <typename Thing>
class Pool {
 public:
  std::unique_ptr<Thing> take() {
    {
      std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        std::unique_ptr<Thing> thing = std::move(free_.back());
        free_.pop_back();
        return thing;
      }
    }
    return std::make_unique<Thing>();
  }

  void give_back(std::unique_ptr<Thing> thing) {
    std::lock_guard lock(mutex_);
    free_.push_back(std::move(thing));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Thing>> free_;
};

}  // namespace fsdp::data
