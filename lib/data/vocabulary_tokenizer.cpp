#include "data/vocabulary_tokenizer.h"

#include "util/error.h"

namespace fsdp::data {

std::unique_ptr<Tokenizer> make_tokenizer(const Vocabulary& vocabulary) {
  return vocabulary.model == Vocabulary::Model::kByteLevelBpe ? make_bpe_tokenizer(vocabulary)
                                                              : make_metaspace_tokenizer(vocabulary);
}

VocabularyTokenizer::VocabularyTokenizer(const Vocabulary& vocabulary)
    : name_(vocabulary.source), ids_(vocabulary.tokens) {
  for (const auto& token : vocabulary.added) ids_[token.content] = token.id;
  if (!vocabulary.end_of_text.empty()) end_of_text_ = id_of(vocabulary.end_of_text);
}

void VocabularyTokenizer::keep(int64_t id, std::string bytes, std::optional<std::string> first) {
  first_bytes_.erase(id);
  if (first && *first != bytes) first_bytes_[id] = std::move(*first);
  if (id >= vocab_size()) bytes_.resize(static_cast<size_t>(id) + 1);
  bytes_[static_cast<size_t>(id)] = std::move(bytes);
}

std::optional<std::string> VocabularyTokenizer::bytes_of(int64_t id, bool begins) const {
  if (id < 0 || id >= vocab_size() || !bytes_[static_cast<size_t>(id)]) {
    util::fail(util::ErrorKind::kData, "the id ", id, " is not a token of the vocabulary ", name_, " (0 to ",
               vocab_size() - 1, "); decode it with the tokenizer that made it");
  }
  const auto first = begins ? first_bytes_.find(id) : first_bytes_.end();
  return first == first_bytes_.end() ? bytes_[static_cast<size_t>(id)] : first->second;
}

std::optional<int64_t> VocabularyTokenizer::id_of(const std::string& token) const {
  auto found = ids_.find(token);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace fsdp::data
