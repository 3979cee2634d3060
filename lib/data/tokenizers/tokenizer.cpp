#include "data/tokenizers/tokenizer.h"

#include <algorithm>
#include <filesystem>

#include "base/util/error.h"
#include "base/util/extension.h"
#include "base/util/file.h"
#include "data/tokenizers/gguf_tokenizer.h"
#include "data/tokenizers/rank_vocabulary.h"
#include "data/tokenizers/sentencepiece_tokenizer.h"
#include "data/tokenizers/utf8.h"
#include "data/tokenizers/vocabulary_tokenizer.h"

namespace fsdp::data {
namespace fs = std::filesystem;
namespace {

class ByteTokenizer final : public Tokenizer {
 public:
  std::string name() const override { return "bytes"; }
  int64_t vocab_size() const override { return 256; }
  std::optional<int64_t> id_of(const std::string& token) const override {
    return token.size() == 1 ? std::optional<int64_t>(static_cast<unsigned char>(token[0])) : std::nullopt;
  }

  void encode(std::string_view text, std::vector<int64_t>& ids) const override {
    const size_t begin = ids.size();
    ids.resize(begin + text.size());  // reserve() for each document would copy all ids each time
    std::transform(text.begin(), text.end(), ids.begin() + static_cast<int64_t>(begin),
                   [](char c) { return static_cast<unsigned char>(c); });
  }

  size_t encode_some(std::string_view text, size_t stop, std::vector<int64_t>& ids) const override {
    stop = std::min(stop, text.size());
    encode(text.substr(0, stop), ids);
    return stop;
  }

  size_t likely_cut(std::string_view text) const override { return text.size(); }

  std::optional<std::string> bytes_of(int64_t id, bool /*begins*/) const override {
    check(id, 0);
    return std::string(1, static_cast<char>(id));
  }

  std::string decode(const std::vector<int64_t>& ids) const override {
    std::string text;
    text.reserve(ids.size());
    for (int64_t id : ids) {
      check(id, text.size());
      text.push_back(static_cast<char>(id));
    }
    return text;
  }

 private:
  void check(int64_t id, size_t place) const {
    if (id >= 0 && id < vocab_size()) return;
    fail(ErrorKind::kData, "the id ", id, " at position ", place,
         " is not a byte token (0 to 255); decode it with the tokenizer that made it");
  }
};

/// Reads a .model, which is SentencePiece's or tiktoken's, as that of Llama 3.
NamedVocabulary read_model(const fs::path& path) {
  if (is_tiktoken(path)) return read_tiktoken(path);
  return path;
}

/// Finds the vocabulary in a folder.
NamedVocabulary find_in_folder(const fs::path& folder) {
  std::error_code error;
  if (fs::exists(folder / "tokenizer.json", error)) return read_tokenizer_json(folder / "tokenizer.json");
  for (auto [vocabulary, merges] : {std::pair("encoder.json", "vocab.bpe"), {"vocab.json", "merges.txt"}}) {
    if (fs::exists(folder / vocabulary, error) && fs::exists(folder / merges, error)) {
      return read_two_files(folder / vocabulary, folder / merges);
    }
  }
  if (fs::exists(folder / "tekken.json", error)) return read_tekken(folder / "tekken.json");
  if (const fs::path model = folder / "tokenizer.model"; fs::exists(model, error)) return read_model(model);
  fail(ErrorKind::kData, "the folder ", folder.string(), " contains no vocabulary: expected ",
       "tokenizer.json, encoder.json and vocab.bpe, vocab.json and merges.txt, tekken.json, or "
       "tokenizer.model; "
       "give the folder or file that does");
}

}  // namespace

std::string Tokenizer::decode(const std::vector<int64_t>& ids) const {
  std::string text;
  bool begins = true;
  for (int64_t id : ids) {
    std::optional<std::string> bytes = bytes_of(id, begins);
    if (!bytes) continue;
    begins = false;
    text += *bytes;
  }
  return text;
}

std::string TextDecoder::push(int64_t id) {
  std::optional<std::string> bytes = tokenizer_.bytes_of(id, begins_);
  if (!bytes) return "";
  begins_ = false;
  pending_ += *bytes;
  size_t whole = pending_.size() - incomplete_utf8_tail(pending_);
  std::string text = pending_.substr(0, whole);
  pending_.erase(0, whole);
  return text;
}

std::string TextDecoder::finish() {
  std::string text;
  text.swap(pending_);
  begins_ = true;
  return text;
}

TokenBytes::TokenBytes(const Tokenizer& tokenizer) {
  bytes_.reserve(static_cast<size_t>(tokenizer.vocab_size()));
  for (int64_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::optional<std::string> bytes = tokenizer.bytes_of(id, /*begins=*/false);
    bytes_.push_back(bytes ? static_cast<int32_t>(bytes->size()) : 0);
  }
}

std::optional<int64_t> TokenBytes::count(const int64_t* ids, int64_t length) const {
  int64_t sum = 0;
  for (int64_t i = 0; i < length; ++i) {
    if (ids[i] < 0) continue;
    if (ids[i] >= static_cast<int64_t>(bytes_.size())) return std::nullopt;
    sum += bytes_[static_cast<size_t>(ids[i])];
  }
  return sum;
}

namespace {

NamedVocabulary find_in_files(const std::string& name) {
  const fs::path path = name;
  std::error_code error;
  if (fs::is_directory(path, error)) return find_in_folder(path);
  if (fs::exists(path, error)) {
    std::string file = path.filename().string();
    if (file == "encoder.json" || file == "vocab.json") {
      return find_in_folder(path.has_parent_path() ? path.parent_path() : fs::path("."));
    }
    const bool is_tekken = file.find("tekken") != std::string::npos;
    if (util::extension_of(path) == ".json") return is_tekken ? read_tekken(path) : read_tokenizer_json(path);
    if (util::extension_of(path) == ".tiktoken") return read_tiktoken(path);
    // Mistral's models have names such as tokenizer.model.v3.
    if ((file + ".").find(".model.") != std::string::npos) return read_model(path);
  }
  const bool there = fs::exists(path, error);
  fail(ErrorKind::kUsage, "unknown tokenizer \"", name, "\", ",
       there ? "a file of another kind" : "which is not a file or folder either", "; expected ",
       kTokenizerChoices, there ? "" : util::hub_remedy(name));
}

}  // namespace

NamedVocabulary find_vocabulary(const std::string& name) {
  if (name == "bytes") return Bytes();
  NamedVocabulary found = with_unpacked(name, find_in_files);
  if (auto* vocabulary = std::get_if<Vocabulary>(&found); vocabulary && names_gguf(name))
    vocabulary->source = name;
  return found;
}

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name, const TokenizerOptions& options) {
  NamedVocabulary found = find_vocabulary(name);
  if (std::holds_alternative<Bytes>(found)) return std::make_unique<ByteTokenizer>();
  if (const auto* model = std::get_if<fs::path>(&found)) return make_sentencepiece_tokenizer(*model, options);
  auto& vocabulary = std::get<Vocabulary>(found);
  vocabulary.split_special_tokens = options.split_special_tokens;
  return make_tokenizer(vocabulary);
}

std::unique_ptr<Tokenizer> make_tokenizer(const Vocabulary& vocabulary) {
  if (is_of_characters(vocabulary)) return make_character_tokenizer(vocabulary);
  return vocabulary.model == Vocabulary::Model::kByteLevelBpe ? make_bpe_tokenizer(vocabulary)
                                                              : make_metaspace_tokenizer(vocabulary);
}

VocabularyTokenizer::VocabularyTokenizer(const Vocabulary& vocabulary)
    : name_(vocabulary.source),
      ids_(vocabulary.tokens),
      begin_of_text_(vocabulary.begin_ids.value_or(std::vector<int64_t>{})) {
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
  if (id < 0 || id >= vocab_size()) {
    fail(ErrorKind::kData, "the id ", id, " is not a token of the vocabulary ", name_, " (0 to ",
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
