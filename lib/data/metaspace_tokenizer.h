#pragma once

// Tokenizers over characters as Hugging Face's tokenizers runs them, which write blanks as U+2581: BPE with
// bytes for what is no token (Llama 2, Mistral) and Unigram (T5). Added tokens are cut out, what lies between
// is normalized, split at blanks, and each piece is given to the model.
//
// Bytes that are not UTF-8 are tokens of their own where the vocabulary has tokens of bytes, and else
// unknown.

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "data/added_tokens.h"
#include "data/merge_table.h"
#include "data/normalizer.h"
#include "data/piece_model.h"
#include "data/pool.h"
#include "data/tokenizer.h"
#include "data/vocabulary.h"

namespace fsdp::data {

class MetaspaceTokenizer final : public Tokenizer {
 public:
  explicit MetaspaceTokenizer(const Vocabulary& vocabulary);

  std::string name() const override { return name_; }
  int64_t vocab_size() const override { return static_cast<int64_t>(bytes_.size()); }
  void encode(std::string_view text, std::vector<int64_t>& ids) const override;
  /// Normalization looks at a text as a whole, so texts are never cut.
  size_t encode_some(std::string_view, size_t, std::vector<int64_t>&) const override { return 0; }
  size_t likely_cut(std::string_view) const override { return 0; }
  std::optional<std::string> bytes_of(int64_t id, bool begins) const override;
  std::optional<int64_t> end_of_text() const override { return end_of_text_; }
  std::optional<int64_t> id_of(const std::string& token) const override;

 private:
  class Encoding;

  std::string name_;
  std::unique_ptr<PieceModel> model_;
  Normalizer normalizer_;
  AddedTokens added_, normalized_added_;
  bool split_at_whitespace_;
  std::optional<Vocabulary::Metaspace> metaspace_;
  /// Stands for a blank; no token goes on with one, so that texts may be cut before the first of several.
  std::string word_mark_;
  std::array<std::optional<uint32_t>, 256> byte_ids_;
  std::optional<int64_t> unknown_id_;
  std::vector<std::optional<std::string>> bytes_;  ///< of each id; nothing where the vocabulary has a gap
  std::vector<std::optional<std::string>> first_bytes_;  ///< of an id that begins a text, where they differ
  std::unordered_map<std::string, int64_t> ids_;
  std::optional<int64_t> end_of_text_;
  mutable Pool<PieceCache> caches_;
};

}  // namespace fsdp::data
