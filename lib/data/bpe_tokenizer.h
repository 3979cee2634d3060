#pragma once

// Byte-level BPE as Hugging Face's tokenizers does it, GPT-2's, Llama 3's and Qwen2's among them: added
// tokens are cut out, what lies between is put into a normalization form where the tokenizer has one and
// split by patterns, and each piece is merged (byte_pair_merger.h).
//
// Bytes that are not UTF-8 are tokens of their own, one a byte, so that every text comes back from its ids.

#include <unordered_map>

#include "data/added_tokens.h"
#include "data/byte_pair_merger.h"
#include "data/pool.h"
#include "data/split_pattern.h"
#include "data/tokenizer.h"
#include "data/vocabulary.h"

namespace fsdp::data {

class BpeTokenizer final : public Tokenizer {
 public:
  explicit BpeTokenizer(const Vocabulary& vocabulary);
  ~BpeTokenizer() override;

  std::string name() const override { return name_; }
  int64_t vocab_size() const override { return static_cast<int64_t>(bytes_.size()); }
  void encode(std::string_view text, std::vector<int64_t>& ids) const override;
  size_t encode_some(std::string_view text, size_t stop, std::vector<int64_t>& ids) const override;
  size_t likely_cut(std::string_view text) const override;
  std::optional<std::string> bytes_of(int64_t id, bool begins) const override;
  std::optional<int64_t> end_of_text() const override { return end_of_text_; }
  std::optional<int64_t> id_of(const std::string& token) const override;

 private:
  struct Scratch;
  class Encoding;
  struct Split {
    SplitPattern pattern;
    bool matches_only;
  };

  /// With a blank put before each text, what is cut off would get one; and tokens of the normalized text are
  /// looked for in whole texts.
  bool never_cut() const { return add_prefix_space_ || normalized_added_.longest_bytes() > 0; }
  size_t encode_up_to(std::string_view text, size_t stop, bool goes_on, std::vector<int64_t>& ids) const;

  std::string name_;
  BytePairMerger merger_;
  AddedTokens added_;
  std::optional<UnicodeForm> form_;
  AddedTokens normalized_added_;  ///< with a form: those that are looked for in the text in that form
  std::vector<Split> splits_;
  bool add_prefix_space_;
  std::vector<std::optional<std::string>> bytes_;  ///< of each id; nothing where the vocabulary has a gap
  std::unordered_map<std::string, int64_t> ids_;   ///< of each token, as the vocabulary writes it
  std::optional<int64_t> end_of_text_;
  mutable Pool<Scratch> scratch_;
};

}  // namespace fsdp::data
