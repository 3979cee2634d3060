#include "state/gguf_export/tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/util/error.h"
#include "data/tokenizers/gguf_tokenizer.h"
#include "data/tokenizers/piece_model.h"
#include "data/tokenizers/sentencepiece_model.h"
#include "data/tokenizers/utf8.h"
#include "data/tokenizers/vocabulary_reader.h"
#include "state/gguf_export/export.h"

namespace fsdp::gguf {
namespace fs = std::filesystem;
using data::SentencePieceModel;
using data::Vocabulary;
using data::VocabularyReader;
using nlohmann::json;

namespace {

using Kind = SentencePieceModel::PieceKind;

constexpr std::string_view kBlank = "\xe2\x96\x81";

/// Added tokens that publishers forgot to mark as special; llama.cpp's converter takes the same for it.
bool looks_special(std::string_view token) {
  for (const char* known : {"<pad>", "<mask>", "<2mass>", "[@BOS@]"}) {
    if (token == known) return true;
  }
  return (token.starts_with("<|") && token.ends_with("|>")) ||
         (token.starts_with("<\uff5c") && token.ends_with("\uff5c>")) ||
         (token.starts_with("<unused") && token.ends_with(">"));
}

bool is_byte_token(std::string_view token) {
  return token.size() == 6 && token.starts_with("<0x") && token.ends_with('>') &&
         token.substr(3, 2).find_first_not_of("0123456789ABCDEFabcdef") == token.npos;
}

std::string text_at(const json& object, const char* key) {
  if (!object.is_object()) return "";
  const json& value = VocabularyReader::at(object, key);
  if (value.is_object()) return text_at(value, "content");
  return value.is_string() ? value.get<std::string>() : "";
}

/// The tokenizer under construction.
class GgufVocabulary {
 public:
  GgufVocabulary(std::string tokenizer, int64_t vocab_size) : tokenizer_(std::move(tokenizer)) {
    for (int64_t id = 0; id < vocab_size; ++id) texts_.push_back(concat("[PAD", id, "]"));
    kinds_.resize(texts_.size(), static_cast<int32_t>(Kind::kUnused));
    scores_.resize(texts_.size(), kLowest);
  }

  void put(int64_t id, std::string text, Kind kind, float score = kLowest) {
    if (id < 0 || id >= static_cast<int64_t>(texts_.size())) {
      fail(ErrorKind::kUsage, "the tokenizer ", tokenizer_, " has a token with the id ", id,
           ", but the model has a vocabulary of ", texts_.size(), "; give the tokenizer of this model");
    }
    texts_[static_cast<size_t>(id)] = std::move(text);
    kinds_[static_cast<size_t>(id)] = static_cast<int32_t>(kind);
    scores_[static_cast<size_t>(id)] = score;
  }

  void put_added(int64_t id, const std::string& text, bool special) {
    if (special || looks_special(text)) return put(id, text, Kind::kControl);
    put(id, data::replace_all(text, kBlank, " "), Kind::kUserDefined);
  }

  std::optional<uint32_t> id_of(const std::string& text) const {
    const auto found = std::find(texts_.begin(), texts_.end(), text);
    if (text.empty() || found == texts_.end()) return std::nullopt;
    return static_cast<uint32_t>(found - texts_.begin());
  }
  std::optional<uint32_t> id_of_kind(Kind kind) const {
    const auto found = std::find(kinds_.begin(), kinds_.end(), static_cast<int32_t>(kind));
    if (found == kinds_.end()) return std::nullopt;
    return static_cast<uint32_t>(found - kinds_.begin());
  }
  size_t size() const { return texts_.size(); }

  /// `scored`: tokens of characters are merged by their scores.
  void append_to(Metadata& metadata, bool scored) {
    metadata.emplace_back("tokenizer.ggml.tokens", std::move(texts_));
    if (scored) metadata.emplace_back("tokenizer.ggml.scores", std::move(scores_));
    metadata.emplace_back("tokenizer.ggml.token_type", std::move(kinds_));
  }

  static constexpr float kLowest = -1e6F;

 private:
  std::string tokenizer_;
  std::vector<std::string> texts_;
  std::vector<int32_t> kinds_;
  std::vector<float> scores_;
};

using Merges = std::vector<std::string>;

/// Tokens of bytes, joined by merges.
void put_byte_level(const Vocabulary& vocabulary, GgufVocabulary& out, Metadata& metadata, Merges& merges) {
  const std::string pre = pre_tokenizer_of(vocabulary);
  if (pre.empty()) {
    std::vector<std::string> patterns;
    for (const Vocabulary::Split& split : vocabulary.splits) patterns.push_back(split.pattern);
    fail(ErrorKind::kUsage, "the tokenizer must split texts as one of llama.cpp's does, but ",
         vocabulary.source, " has the patterns ", json(patterns).dump(),
         vocabulary.add_prefix_space ? " and a blank before texts" : "",
         "; export the model without tokenizer (\"", kNoTokenizer, "\")");
  }
  metadata.emplace_back("tokenizer.ggml.model", std::string("gpt2"));
  metadata.emplace_back("tokenizer.ggml.pre", pre);
  for (const auto& [text, id] : vocabulary.tokens) out.put(id, text, Kind::kNormal);
  for (const auto& [first, second] : vocabulary.merges) merges.push_back(concat(first, " ", second));
}

/// Tokens of characters. llama.cpp merges the neighbours whose token has the highest score, so a merge's
/// place in the list gives its token's score.
void put_characters(const Vocabulary& vocabulary, GgufVocabulary& out, Metadata& metadata) {
  if (vocabulary.model != Vocabulary::Model::kCharacterBpe) {
    fail(ErrorKind::kUsage, "the tokenizer must be byte pair encoding for a GGUF file, but ",
         vocabulary.source, " is Unigram; export the model without tokenizer (\"", kNoTokenizer, "\")");
  }
  if (is_of_characters(vocabulary)) {
    fail(ErrorKind::kUsage, "the tokenizer must have tokens for all bytes for a GGUF file, but ",
         vocabulary.source, " has characters alone; export the model without tokenizer (\"", kNoTokenizer,
         "\")");
  }
  metadata.emplace_back("tokenizer.ggml.model", std::string("llama"));
  metadata.emplace_back("tokenizer.ggml.pre", std::string("default"));
  std::map<std::string, float> scores;
  for (size_t i = 0; i < vocabulary.merges.size(); ++i) {
    scores.emplace(vocabulary.merges[i].first + vocabulary.merges[i].second, -static_cast<float>(i));
  }
  for (const auto& [text, id] : vocabulary.tokens) {
    const auto score = scores.find(text);
    const Kind kind = vocabulary.unknown_id == id ? Kind::kUnknown
                      : is_byte_token(text)       ? Kind::kByte
                                                  : Kind::kNormal;
    out.put(id, text, kind, score == scores.end() ? GgufVocabulary::kLowest : score->second);
  }
  bool blank_first =
      vocabulary.metaspace && vocabulary.metaspace->prepend != Vocabulary::Metaspace::Prepend::kNever;
  for (const data::NormalizerStep& step : vocabulary.normalizer) {
    blank_first = blank_first || step.kind == data::NormalizerStep::StepKind::kPrepend;
  }
  metadata.emplace_back("tokenizer.ggml.add_space_prefix", blank_first);
}

void put_sentencepiece(const SentencePieceModel& model, const fs::path& path, GgufVocabulary& out,
                       Metadata& metadata) {
  if (model.type != SentencePieceModel::Type::kBpe) {
    fail(ErrorKind::kUsage, "the tokenizer must be byte pair encoding for a GGUF file, but ", path.string(),
         " is of another type (Unigram, ...); export the model without tokenizer (\"", kNoTokenizer, "\")");
  }
  metadata.emplace_back("tokenizer.ggml.model", std::string("llama"));
  metadata.emplace_back("tokenizer.ggml.pre", std::string("default"));
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const SentencePieceModel::Piece& piece = model.pieces[id];
    out.put(static_cast<int64_t>(id), piece.text, piece.kind, piece.score);
  }
  metadata.emplace_back("tokenizer.ggml.add_space_prefix", model.adds_blank);
  metadata.emplace_back("tokenizer.ggml.remove_extra_whitespaces", model.drops_blanks);
}

struct SpecialToken {
  const char *name, *key;
};
constexpr SpecialToken kSpecialTokens[] = {{"bos", "bos_token_id"},     {"eos", "eos_token_id"},
                                           {"unk", "unknown_token_id"}, {"sep", "seperator_token_id"},
                                           {"pad", "padding_token_id"}, {"mask", "mask_token_id"}};

void put_special_tokens(const GgufVocabulary& tokens, const json& tokenizer_config, const json& model_config,
                        const Vocabulary& vocabulary, const std::string& usual_begin, Metadata& metadata) {
  const auto last = [](const std::optional<std::vector<int64_t>>& ids) -> std::optional<uint32_t> {
    if (!ids || ids->empty()) return std::nullopt;
    return static_cast<uint32_t>(ids->back());
  };
  for (const SpecialToken& special : kSpecialTokens) {
    const std::string name = special.name;
    std::optional<uint32_t> id = tokens.id_of(text_at(tokenizer_config, concat(name, "_token").c_str()));
    const json& configured = VocabularyReader::at(model_config, concat(name, "_token_id").c_str());
    const bool in_range = configured.is_number_integer() && configured >= 0 && configured < tokens.size();
    if (!id && in_range) id = configured.get<uint32_t>();
    if (!id && name == "bos") id = last(vocabulary.begin_ids);
    if (!id && name == "bos") id = tokens.id_of(usual_begin);
    if (!id && name == "eos") id = tokens.id_of(vocabulary.end_of_text);
    if (!id && name == "eos") id = last(vocabulary.end_ids);
    if (!id && name == "unk") id = tokens.id_of_kind(Kind::kUnknown);
    if (id) metadata.emplace_back(concat("tokenizer.ggml.", special.key), *id);
  }
}

/// Adds the chat template, or a list of templates with names.
void put_chat_templates(const fs::path& folder, const json& tokenizer_config, Metadata& metadata) {
  json found =
      tokenizer_config.is_object() ? VocabularyReader::at(tokenizer_config, "chat_template") : json();
  std::error_code error;
  if (!folder.empty() && fs::exists(folder / "chat_template.jinja", error)) {
    found = data::read_vocabulary_file(folder / "chat_template.jinja");
  } else if (const json other =
                 folder.empty() ? json() : data::read_json_if_there(folder / "chat_template.json");
             found.is_null() && other.is_object()) {
    found = VocabularyReader::at(other, "chat_template");
  }
  if (!found.is_array()) {
    json only = {{"name", "default"}};
    only["template"] = std::move(found);
    found = json::array();
    found.push_back(std::move(only));
  }
  std::vector<std::string> names;
  for (const json& entry : found) {
    std::string name = text_at(entry, "name");
    const std::string content = text_at(entry, "template");
    if (name.empty() || content.empty()) continue;
    for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
    if (name != "default") names.push_back(name);
    metadata.emplace_back(name == "default" ? "tokenizer.chat_template" : "tokenizer.chat_template." + name,
                          content);
  }
  if (!names.empty()) metadata.emplace_back("tokenizer.chat_templates", names);
}

}  // namespace

std::string pre_tokenizer_of(const Vocabulary& vocabulary) {
  if (vocabulary.add_prefix_space) return "";
  for (const data::GgufPreTokenizer& known : data::gguf_pre_tokenizers()) {
    const bool same =
        std::equal(known.patterns.begin(), known.patterns.end(), vocabulary.splits.begin(),
                   vocabulary.splits.end(), [](const char* pattern, const Vocabulary::Split& split) {
                     return split.pattern == pattern && !split.literal && !split.matches_only;
                   });
    if (same && known.ignores_merges == vocabulary.ignore_merges) return known.names.front();
  }
  return "";
}

namespace {

void describe_files(const std::string& tokenizer, int64_t vocab_size, const json& model_config,
                    Metadata& metadata) {
  GgufVocabulary tokens(tokenizer, vocab_size);
  Merges merges;
  Vocabulary vocabulary;
  fs::path folder;
  bool scored = false;
  std::string usual_begin;
  data::NamedVocabulary found = data::find_vocabulary(tokenizer);
  if (const auto* path = std::get_if<fs::path>(&found)) {
    const SentencePieceModel model = data::read_sentencepiece_model(*path);
    put_sentencepiece(model, *path, tokens, metadata);
    vocabulary = data::vocabulary_of(model, *path);
    for (const Vocabulary::AddedToken& token : vocabulary.added) {
      tokens.put_added(token.id, token.content, token.special);
    }
    if (vocabulary.end_of_text.empty()) vocabulary.end_of_text = model.end_piece;
    usual_begin = model.begin_piece;
    scored = true;
  } else if (std::holds_alternative<data::Bytes>(found)) {
    for (int byte = 0; byte < 256; ++byte)
      vocabulary.tokens[data::byte_symbol(static_cast<unsigned char>(byte))] = byte;
    vocabulary.splits.push_back({.pattern = data::kGpt2SplitPattern});
    put_byte_level(vocabulary, tokens, metadata, merges);
  } else {
    vocabulary = std::move(std::get<Vocabulary>(found));
    scored = vocabulary.model != Vocabulary::Model::kByteLevelBpe;
    if (scored) {
      put_characters(vocabulary, tokens, metadata);
    } else {
      put_byte_level(vocabulary, tokens, metadata, merges);
    }
    for (const Vocabulary::AddedToken& token : vocabulary.added) {
      const bool is_unknown = scored && vocabulary.unknown_id == token.id;
      if (!is_unknown) tokens.put_added(token.id, token.content, token.special);
    }
  }
  if (!vocabulary.source.empty()) folder = fs::path(vocabulary.source).parent_path();
  if (!vocabulary.source.empty() && folder.empty()) folder = ".";
  const json config = folder.empty() ? json() : data::read_json_if_there(folder / "tokenizer_config.json");
  put_special_tokens(tokens, config, model_config, vocabulary, usual_begin, metadata);
  tokens.append_to(metadata, scored);
  if (!scored) metadata.emplace_back("tokenizer.ggml.merges", std::move(merges));
  for (const auto& [key, ids] :
       {std::pair("add_bos_token", &vocabulary.begin_ids), std::pair("add_eos_token", &vocabulary.end_ids)}) {
    // Where files of transformers say nothing about a SentencePiece model, llama.cpp's default is theirs.
    // Other tokenizers, and those that are trained here, then put nothing around texts.
    const bool knows = ids->has_value() || config.is_null() || !scored;
    if (knows) metadata.emplace_back(concat("tokenizer.ggml.", key), *ids && !(*ids)->empty());
  }
  put_chat_templates(folder, config, metadata);
}

}  // namespace

void describe_tokenizer(const std::string& tokenizer, int64_t vocab_size, const json& model_config,
                        Metadata& metadata) {
  if (tokenizer == kNoTokenizer) {
    metadata.emplace_back("tokenizer.ggml.model", std::string(kWithoutVocabulary));
    return;
  }
  data::with_unpacked(tokenizer, [&](const std::string& files) {
    describe_files(files, vocab_size, model_config, metadata);
  });
}

}  // namespace fsdp::gguf
