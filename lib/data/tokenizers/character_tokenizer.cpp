// Each character of a text is a token, as in small models for teaching. Hugging Face's tokenizers drop
// characters that such a vocabulary lacks. Here they are an error, because a model cannot see what is
// missing.

#include <algorithm>

#include "base/util/error.h"
#include "data/tokenizers/added_tokens.h"
#include "data/tokenizers/utf8.h"
#include "data/tokenizers/vocabulary_tokenizer.h"

namespace fsdp::data {
namespace {

class CharacterTokenizer final : public VocabularyTokenizer {
 public:
  explicit CharacterTokenizer(const Vocabulary& vocabulary)
      : VocabularyTokenizer(vocabulary),
        characters_(static_cast<int64_t>(vocabulary.tokens.size())),
        added_(vocabulary.matched_tokens()),
        has_added_(!vocabulary.matched_tokens().empty()) {
    for (const auto& [character, id] : vocabulary.tokens) {
      keep(id, character);
      ids_[first_code_point(character).value] = id;
    }
    for (const auto& token : vocabulary.added) keep(token.id, token.content);
  }

  void encode(std::string_view text, std::vector<int64_t>& ids) const override {
    added_.cut_out(text, ids, [&](std::string_view part, bool /*begins*/) { characters(part, ids); });
  }

  size_t encode_some(std::string_view text, size_t stop, std::vector<int64_t>& ids) const override {
    if (has_added_) return 0;
    size_t end = std::min(stop, text.size());
    while (end < text.size() && is_continuation(text[end])) ++end;
    if (end == text.size()) end -= incomplete_utf8_tail(text);
    characters(text.substr(0, end), ids);
    return end;
  }

  size_t likely_cut(std::string_view text) const override {
    return has_added_ ? 0 : text.size() - incomplete_utf8_tail(text);
  }

 private:
  void characters(std::string_view text, std::vector<int64_t>& ids) const {
    while (!text.empty()) {
      const CodePoint character = first_code_point(text);
      const auto found =
          valid_utf8_prefix(text.substr(0, character.bytes)) > 0 ? ids_.find(character.value) : ids_.end();
      if (found == ids_.end()) {
        fail(ErrorKind::kData, "the character ", for_message(text.substr(0, character.bytes)),
             " is none of the ", characters_, " characters of the vocabulary ", name(),
             "; make one from all texts (fsdp-data train-tokenizer TEXT... --type characters)");
      }
      ids.push_back(found->second);
      text.remove_prefix(character.bytes);
    }
  }

  int64_t characters_;
  AddedTokens added_;
  bool has_added_;
  std::unordered_map<uint32_t, int64_t> ids_;
};

}  // namespace

bool is_of_characters(const Vocabulary& vocabulary) {
  const bool is_one = vocabulary.model == Vocabulary::Model::kCharacterBpe && vocabulary.merges.empty() &&
                      !vocabulary.byte_fallback && !vocabulary.unknown_id && vocabulary.normalizer.empty() &&
                      !vocabulary.metaspace && !vocabulary.split_at_whitespace &&
                      vocabulary.decoding.blank.empty() && !vocabulary.decoding.strip_one_blank;
  return is_one && !vocabulary.tokens.empty() &&
         std::ranges::all_of(vocabulary.tokens, [](const auto& token) {
           const std::string& text = token.first;
           return !text.empty() && valid_utf8_prefix(text) == text.size() &&
                  first_code_point(text).bytes == text.size();
         });
}

std::unique_ptr<Tokenizer> make_character_tokenizer(const Vocabulary& vocabulary) {
  return std::make_unique<CharacterTokenizer>(vocabulary);
}

}  // namespace fsdp::data
