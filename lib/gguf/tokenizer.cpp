#include "gguf/tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "data/piece_model.h"
#include "data/utf8.h"
#include "data/vocabulary_reader.h"
#include "gguf/export.h"
#include "gguf/sentencepiece_model.h"
#include "util/error.h"
#include "util/file.h"
#include "util/text.h"

namespace fsdp::gguf {
namespace fs = std::filesystem;
using data::Vocabulary;
using data::VocabularyReader;
using nlohmann::json;
using util::concat;
using util::ErrorKind;
using util::fail;

namespace {

using Kind = SentencePieceModel::Kind;

constexpr const char* kLlama3SplitPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kBlank = "\xe2\x96\x81";

/// How llama.cpp's pre-tokenizers split texts, of several alike one.
struct PreTokenizer {
  const char* name;
  std::vector<const char*> patterns;
  bool ignores_merges;
};

const std::vector<PreTokenizer>& pre_tokenizers() {
  static const std::vector<PreTokenizer> kPreTokenizers = {
      {"gpt-2", {data::kGpt2SplitPattern}, false},
      {"llama-bpe", {kLlama3SplitPattern}, true},
      {"dbrx", {kLlama3SplitPattern}, false},
      {"qwen2", {data::kQwen2SplitPattern}, false},
      {"smollm", {"\\p{N}", data::kGpt2SplitPattern}, false},
  };
  return kPreTokenizers;
}

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

/// A JSON file beside the vocabulary; null where there is none.
json json_beside(const fs::path& folder, const char* name) {
  const fs::path path = folder / name;
  std::error_code error;
  if (folder.empty() || !fs::exists(path, error)) return nullptr;
  return VocabularyReader(path.string()).parse(data::read_vocabulary_file(path));
}

std::string text_at(const json& object, const char* key) {
  if (!object.is_object()) return "";
  const json& value = VocabularyReader::at(object, key);
  if (value.is_object()) return text_at(value, "content");
  return value.is_string() ? value.get<std::string>() : "";
}

/// What is put before and after a text.
struct Ends {
  std::optional<bool> begin, end;
  std::string begin_token, end_token;
};

/// Of the post-processor of a tokenizer.json.
void read_ends(const json& processor, Ends& ends) {
  const std::string type = text_at(processor, "type");
  if (type == "Sequence") {
    const json& list = VocabularyReader::at(processor, "processors");
    for (const json& part : list.is_array() ? list : json::array()) read_ends(part, ends);
  } else if (type == "ByteLevel") {
    if (!ends.begin) ends.begin = false;
    if (!ends.end) ends.end = false;
  } else if (type == "RobertaProcessing" || type == "BertProcessing") {
    ends.begin = ends.end = true;
  } else if (type == "TemplateProcessing") {
    const json& single = VocabularyReader::at(processor, "single");
    if (!single.is_array() || single.size() < 2) return;
    const auto special = [](const json& part) {
      return part.is_object() ? text_at(VocabularyReader::at(part, "SpecialToken"), "id") : "";
    };
    ends.begin_token = special(single.front());
    ends.end_token = special(single.back());
    if (!ends.begin_token.empty()) ends.begin = true;
    if (!ends.end_token.empty()) ends.end = true;
  }
}

/// The tokenizer under construction.
class Description {
 public:
  Description(std::string tokenizer, int64_t vocab_size) : tokenizer_(std::move(tokenizer)) {
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
void put_byte_level(const Vocabulary& vocabulary, Description& out, Metadata& metadata, Merges& merges) {
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

/// Tokens of characters. llama.cpp merges the neighbours whose token has the highest score, so a merge's place
/// in the list gives its token's score.
void put_characters(const Vocabulary& vocabulary, Description& out, Metadata& metadata) {
  if (vocabulary.model != Vocabulary::Model::kCharacterBpe) {
    fail(ErrorKind::kUsage, "the tokenizer must be byte pair encoding for a GGUF file, but ",
         vocabulary.source, " is Unigram; export the model without tokenizer (\"", kNoTokenizer, "\")");
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
    out.put(id, text, kind, score == scores.end() ? Description::kLowest : score->second);
  }
  bool blank_first =
      vocabulary.metaspace && vocabulary.metaspace->prepend != Vocabulary::Metaspace::Prepend::kNever;
  for (const data::NormalizerStep& step : vocabulary.normalizer) {
    blank_first = blank_first || step.kind == data::NormalizerStep::Kind::kPrepend;
  }
  metadata.emplace_back("tokenizer.ggml.add_space_prefix", blank_first);
}

void put_sentencepiece(const fs::path& path, Description& out, Metadata& metadata) {
  const SentencePieceModel model = parse_sentencepiece_model(data::read_vocabulary_file(path), path.string());
  if (!model.bpe) {
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

/// Tokens that tokenizer_config.json adds to a SentencePiece model.
void put_added_of_config(const json& config, Description& out) {
  const json& added = config.is_object() ? VocabularyReader::at(config, "added_tokens_decoder") : config;
  if (!added.is_object()) return;
  for (const auto& [id, token] : added.items()) {
    const std::string text = text_at(token, "content");
    const bool is_number = !id.empty() && id.size() < 10 && id.find_first_not_of("0123456789") == id.npos;
    if (!text.empty() && is_number)
      out.put_added(std::stoll(id), text, VocabularyReader::at(token, "special") == true);
  }
}

struct SpecialToken {
  const char *name, *key;
};
constexpr SpecialToken kSpecialTokens[] = {{"bos", "bos_token_id"},     {"eos", "eos_token_id"},
                                           {"unk", "unknown_token_id"}, {"sep", "seperator_token_id"},
                                           {"pad", "padding_token_id"}, {"mask", "mask_token_id"}};

void put_special_tokens(const Description& tokens, const json& tokenizer_config, const json& model_config,
                        const Ends& ends, const std::string& end_of_text, Metadata& metadata) {
  for (const SpecialToken& special : kSpecialTokens) {
    const std::string name = special.name;
    std::optional<uint32_t> id = tokens.id_of(text_at(tokenizer_config, concat(name, "_token").c_str()));
    const json& configured = VocabularyReader::at(model_config, concat(name, "_token_id").c_str());
    const bool in_range = configured.is_number_integer() && configured >= 0 && configured < tokens.size();
    if (!id && in_range) id = configured.get<uint32_t>();
    if (!id && name == "bos") id = tokens.id_of(ends.begin_token);
    if (!id && name == "eos") id = tokens.id_of(end_of_text.empty() ? ends.end_token : end_of_text);
    if (!id && name == "unk") id = tokens.id_of_kind(Kind::kUnknown);
    if (id) metadata.emplace_back(concat("tokenizer.ggml.", special.key), *id);
  }
}

/// As a list of templates with names, or one.
void put_chat_templates(const fs::path& folder, const json& tokenizer_config, Metadata& metadata) {
  json found =
      tokenizer_config.is_object() ? VocabularyReader::at(tokenizer_config, "chat_template") : json();
  std::error_code error;
  if (!folder.empty() && fs::exists(folder / "chat_template.jinja", error)) {
    found = data::read_vocabulary_file(folder / "chat_template.jinja");
  } else if (const json other = json_beside(folder, "chat_template.json");
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
  for (const PreTokenizer& known : pre_tokenizers()) {
    const bool same =
        std::equal(known.patterns.begin(), known.patterns.end(), vocabulary.splits.begin(),
                   vocabulary.splits.end(), [](const char* pattern, const Vocabulary::Split& split) {
                     return split.pattern == pattern && !split.literal && !split.matches_only;
                   });
    if (same && known.ignores_merges == vocabulary.ignore_merges) return known.name;
  }
  return "";
}

void describe_tokenizer(const std::string& tokenizer, int64_t vocab_size, const json& model_config,
                        Metadata& metadata) {
  if (tokenizer == kNoTokenizer) {
    metadata.emplace_back("tokenizer.ggml.model", std::string(kWithoutVocabulary));
    return;
  }
  Description tokens(tokenizer, vocab_size);
  Merges merges;
  Ends ends;
  std::string end_of_text;
  bool scored = false;
  fs::path folder;
  const data::NamedVocabulary found = data::find_vocabulary(tokenizer);
  if (const auto* vocabulary = std::get_if<Vocabulary>(&found)) {
    folder = fs::path(vocabulary->source).parent_path();
    if (folder.empty()) folder = ".";
    scored = vocabulary->model != Vocabulary::Model::kByteLevelBpe;
    if (scored) {
      put_characters(*vocabulary, tokens, metadata);
    } else {
      put_byte_level(*vocabulary, tokens, metadata, merges);
    }
    for (const Vocabulary::AddedToken& token : vocabulary->added) {
      if (vocabulary->unknown_id != token.id) tokens.put_added(token.id, token.content, token.special);
    }
    end_of_text = vocabulary->end_of_text;
    const json file =
        VocabularyReader(vocabulary->source).parse(data::read_vocabulary_file(vocabulary->source));
    read_ends(VocabularyReader::at(file, "post_processor"), ends);
  } else if (const auto* path = std::get_if<fs::path>(&found)) {
    folder = path->has_parent_path() ? path->parent_path() : fs::path(".");
    scored = true;
    put_sentencepiece(*path, tokens, metadata);
    put_added_of_config(json_beside(folder, "tokenizer_config.json"), tokens);
    end_of_text = "</s>";
    ends.begin_token = "<s>";
  } else {
    Vocabulary bytes;
    for (int byte = 0; byte < 256; ++byte)
      bytes.tokens[data::byte_symbol(static_cast<unsigned char>(byte))] = byte;
    bytes.splits.push_back({.pattern = data::kGpt2SplitPattern});
    put_byte_level(bytes, tokens, metadata, merges);
  }
  const json config = json_beside(folder, "tokenizer_config.json");
  put_special_tokens(tokens, config, model_config, ends, end_of_text, metadata);
  tokens.append_to(metadata, scored);
  if (!scored) metadata.emplace_back("tokenizer.ggml.merges", std::move(merges));
  for (auto [key, adds] : {std::pair("add_bos_token", ends.begin), std::pair("add_eos_token", ends.end)}) {
    if (!adds && config.is_object() && VocabularyReader::at(config, key).is_boolean())
      adds = config[key].get<bool>();
    // Where files of transformers say nothing, llama.cpp's default for the tokenizer is theirs; the tokenizers
    // that are trained here put nothing around texts.
    if (!adds && config.is_null()) adds = false;
    if (adds) metadata.emplace_back(concat("tokenizer.ggml.", key), *adds);
  }
  put_chat_templates(folder, config, metadata);
}

}  // namespace fsdp::gguf
