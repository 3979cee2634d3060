#include "data/tokenizers/gguf_tokenizer.h"

#include <stdlib.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <system_error>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "base/gguf/reader.h"
#include "base/util/extension.h"
#include "base/util/file.h"
#include "base/util/text.h"
#include "data/tokenizers/vocabulary.h"

namespace fsdp::data {
namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr const char* kDigits = "\\p{N}";
constexpr const char* kBlank = "\xe2\x96\x81";

/// llama.cpp's kinds of tokens (llama_token_type).
enum TokenKind : int32_t { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };

/// Control tokens that end an answer, by which llama.cpp stops too (llama_vocab's special_eog_ids).
constexpr const char* kEndsOfTurns[] = {"<|eot_id|>", "<|im_end|>",         "<|end|>",        "<|return|>",
                                        "<|call|>",   "<end_of_turn>",      "<|endoftext|>",  "<|eom_id|>",
                                        "<EOT>",      "<end_of_utterance>", "<|end_of_text|>"};

class GgufTokenizerReader {
 public:
  explicit GgufTokenizerReader(const fs::path& path)
      : file_(path),
        tokens_(list_of<std::string>("tokenizer.ggml.tokens")),
        kinds_(list_of<int32_t>("tokenizer.ggml.token_type")) {}

  bool has_vocabulary() const { return !tokens_.empty(); }

  json tokenizer() {
    if (kinds_.empty()) kinds_.assign(tokens_.size(), kNormal);
    require_as_many("tokenizer.ggml.token_type", kinds_.size());
    json out = {{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}};
    out["added_tokens"] = added_tokens();
    const std::string kind = text_at("tokenizer.ggml.model");
    if (kind == "gpt2") {
      add_byte_level(out);
    } else if (kind == "llama") {
      add_characters(out);
    } else {
      refuse(concat("must have a vocabulary of the kind gpt2 or llama, but has ", printed(kind)));
    }
    return out;
  }

  json config() const {
    json out = {{"tokenizer_class", "PreTrainedTokenizerFast"}, {"clean_up_tokenization_spaces", false}};
    for (const auto& [name, key] : kSpecial) {
      if (const auto id = id_at(key)) out[name] = tokens_[*id];
    }
    out["add_bos_token"] = flag_at("tokenizer.ggml.add_bos_token", adds_begin_);
    out["add_eos_token"] = flag_at("tokenizer.ggml.add_eos_token", false);
    if (const std::string chat = text_at("tokenizer.chat_template"); !chat.empty())
      out["chat_template"] = chat;
    return out;
  }

  /// The tokens at which generated text ends.
  json generation() const {
    json ends = json::array();
    const auto add = [&](std::optional<size_t> id) {
      if (id && std::find(ends.begin(), ends.end(), *id) == ends.end()) ends.push_back(*id);
    };
    add(id_at("tokenizer.ggml.eos_token_id"));
    add(id_at("tokenizer.ggml.eot_token_id"));
    for (const char* text : kEndsOfTurns) {
      const auto found = std::find(tokens_.begin(), tokens_.end(), text);
      if (found == tokens_.end()) continue;
      const auto id = static_cast<size_t>(found - tokens_.begin());
      if (kinds_[id] == kControl) add(id);
    }
    return {{"eos_token_id", std::move(ends)}};
  }

 private:
  static constexpr std::pair<const char*, const char*> kSpecial[] = {
      {"bos_token", "tokenizer.ggml.bos_token_id"},
      {"eos_token", "tokenizer.ggml.eos_token_id"},
      {"unk_token", "tokenizer.ggml.unknown_token_id"},
      {"pad_token", "tokenizer.ggml.padding_token_id"}};

  [[noreturn]] void refuse(const std::string& what) const {
    fail(ErrorKind::kData, file_.path().string(), " ", what,
         "; give the tokenizer.json of the model as tokenizer");
  }
  static std::string printed(const std::string& text) {
    return json(text).dump(-1, ' ', true, json::error_handler_t::replace);
  }

  template <typename Value>
  std::vector<Value> list_of(const std::string& key) const {
    const auto* found = file_.find<std::vector<Value>>(key);
    return found == nullptr ? std::vector<Value>() : *found;
  }
  std::string text_at(const std::string& key) const {
    const auto* found = file_.find<std::string>(key);
    return found == nullptr ? "" : *found;
  }
  bool flag_at(const std::string& key, bool otherwise) const {
    const auto* found = file_.find<bool>(key);
    return found == nullptr ? otherwise : *found;
  }
  std::optional<size_t> id_at(const std::string& key) const {
    const auto* found = file_.find<uint32_t>(key);
    if (found == nullptr || *found >= tokens_.size()) return std::nullopt;
    return *found;
  }
  void require_as_many(const char* key, size_t count) const {
    if (count == tokens_.size()) return;
    refuse(concat("must have as many entries in \"", key, "\" as tokens, ", tokens_.size(), ", but has ",
                  count));
  }

  json added_tokens() const {
    json added = json::array();
    for (size_t id = 0; id < tokens_.size(); ++id) {
      const bool special = kinds_[id] == kControl || kinds_[id] == kUnknown;
      if (!special && kinds_[id] != kUserDefined) continue;
      added.push_back({{"id", id},
                       {"content", tokens_[id]},
                       {"single_word", false},
                       {"lstrip", false},
                       {"rstrip", false},
                       {"normalized", false},
                       {"special", special}});
    }
    return added;
  }

  /// Ids by text, of all that are in use. Of equal texts the first counts.
  json vocabulary() const {
    json ids = json::object();
    for (size_t id = 0; id < tokens_.size(); ++id) {
      if (kinds_[id] != kUnused) ids.emplace(tokens_[id], id);
    }
    return ids;
  }

  static json model(json vocabulary, json merges, json unknown, bool characters, bool ignores_merges) {
    return {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", std::move(unknown)},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", characters},
            {"byte_fallback", characters},
            {"ignore_merges", ignores_merges},
            {"vocab", std::move(vocabulary)},
            {"merges", std::move(merges)}};
  }

  const GgufPreTokenizer& pre_tokenizer() const {
    const std::string name = text_at("tokenizer.ggml.pre");
    std::vector<std::string> known;
    for (const GgufPreTokenizer& each : gguf_pre_tokenizers()) {
      for (const char* its : each.names) {
        if (name == its) return each;
        known.emplace_back(its);
      }
    }
    refuse(concat("must have a pre-tokenizer of ", util::join(known, ", "), ", but has ", printed(name)));
  }

  void add_byte_level(json& out) {
    const GgufPreTokenizer& pre = pre_tokenizer();
    adds_begin_ = pre.adds_begin;
    json parts = json::array();
    bool splits_as_gpt2 = false;
    for (const char* pattern : pre.patterns) {
      splits_as_gpt2 = pattern == kGpt2SplitPattern;  // ByteLevel's own, the last
      if (pattern == std::string_view(kDigits)) {
        parts.push_back({{"type", "Digits"}, {"individual_digits", true}});
      } else if (!splits_as_gpt2) {
        parts.push_back({{"type", "Split"},
                         {"pattern", {{"Regex", pattern}}},
                         {"behavior", "Isolated"},
                         {"invert", false}});
      }
    }
    json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}};
    bytes["use_regex"] = splits_as_gpt2;
    parts.push_back(bytes);
    bytes["use_regex"] = true;
    out.update({{"normalizer", nullptr},
                {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", std::move(parts)}}},
                {"post_processor", nullptr},
                {"decoder", std::move(bytes)}});
    out["model"] = model(vocabulary(), list_of<std::string>("tokenizer.ggml.merges"), nullptr, false,
                         pre.ignores_merges);
  }

  /// Pairs of tokens whose texts join to a token, the best score first: SentencePiece joins in that order.
  json merges_by_score() const {
    const auto scores = list_of<float>("tokenizer.ggml.scores");
    require_as_many("tokenizer.ggml.scores", scores.size());
    std::unordered_map<std::string_view, size_t> ids;
    for (size_t id = 0; id < tokens_.size(); ++id) {
      if (kinds_[id] == kNormal) ids.emplace(tokens_[id], id);
    }
    std::vector<std::tuple<float, size_t, size_t, size_t>> found;  // -score, length of the first, id, at
    for (const auto& [text, id] : ids) {
      for (size_t at = 1; at < text.size(); ++at) {
        if ((static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) continue;  // within a character
        const auto first = ids.find(text.substr(0, at));
        if (first == ids.end() || !ids.contains(text.substr(at))) continue;
        found.emplace_back(-scores[id], id, first->second, at);
      }
    }
    std::sort(found.begin(), found.end());
    json merges = json::array();
    for (const auto& [score, id, first, at] : found) {
      merges.push_back({tokens_[id].substr(0, at), tokens_[id].substr(at)});
    }
    return merges;
  }

  void add_characters(json& out) {
    adds_begin_ = true;
    const bool blank_first = flag_at("tokenizer.ggml.add_space_prefix", true);
    json steps = json::array();
    if (blank_first) steps.push_back({{"type", "Prepend"}, {"prepend", kBlank}});
    steps.push_back({{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kBlank}});
    json decoders = json::array();
    decoders.push_back({{"type", "Replace"}, {"pattern", {{"String", kBlank}}}, {"content", " "}});
    decoders.push_back({{"type", "ByteFallback"}});
    decoders.push_back({{"type", "Fuse"}});
    if (blank_first) decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
    const auto unknown = id_at("tokenizer.ggml.unknown_token_id");
    out.update({{"normalizer", {{"type", "Sequence"}, {"normalizers", std::move(steps)}}},
                {"pre_tokenizer", nullptr},
                {"post_processor", nullptr},
                {"decoder", {{"type", "Sequence"}, {"decoders", std::move(decoders)}}}});
    out["model"] =
        model(vocabulary(), merges_by_score(), unknown ? json(tokens_[*unknown]) : json(), true, false);
  }

  gguf::Reader file_;
  std::vector<std::string> tokens_;
  std::vector<int32_t> kinds_;
  bool adds_begin_ = false;
};

}  // namespace

const std::vector<GgufPreTokenizer>& gguf_pre_tokenizers() {
  static const std::vector<GgufPreTokenizer> all = {
      {{"gpt-2", "phi-2", "mpt", "olmo", "jais", "jina-es", "jina-de"}, {kGpt2SplitPattern}, false, false},
      {{"llama-bpe", "llama3", "llama-v3", "falcon3"}, {kLlama3SplitPattern}, true, true},
      {{"dbrx", "smaug-bpe"}, {kLlama3SplitPattern}, false, false},
      {{"qwen2", "stablelm2", "deepseek-r1-qwen", "hunyuan"}, {kQwen2SplitPattern}, false, false},
      {{"smollm"}, {kDigits, kGpt2SplitPattern}, false, false},
      {{"tekken"}, {kTekkenSplitPattern}, true, true},
      {{"gpt-4o", "llama4"}, {kO200kSplitPattern}, true, false},
  };
  return all;
}

std::map<std::string, std::string> gguf_tokenizer_files(const fs::path& gguf) {
  GgufTokenizerReader reader(gguf);
  if (!reader.has_vocabulary()) return {};
  constexpr auto kReplace = json::error_handler_t::replace;
  std::map<std::string, std::string> files;
  files["tokenizer.json"] = reader.tokenizer().dump(-1, ' ', false, kReplace);
  files["tokenizer_config.json"] = reader.config().dump(2, ' ', false, kReplace) + "\n";
  files["generation_config.json"] = reader.generation().dump(2) + "\n";
  return files;
}

UnpackedTokenizer::UnpackedTokenizer(const fs::path& gguf) : gguf_(gguf) {
  const auto files = gguf_tokenizer_files(gguf);
  if (files.empty()) {
    fail(ErrorKind::kData, gguf.string(),
         " has no vocabulary; give the tokenizer.json of the model as tokenizer");
  }
  std::string name = (fs::temp_directory_path() / "fsdp-tokenizer-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) {
    fail(ErrorKind::kIo, "cannot make a folder like ", name, " for the tokenizer of ", gguf.string(), ": ",
         util::errno_text(errno));
  }
  folder_ = name;
  for (const auto& [file, content] : files) util::write_file_atomically(folder_ / file, content);
}

UnpackedTokenizer::~UnpackedTokenizer() {
  std::error_code error;
  if (!folder_.empty()) fs::remove_all(folder_, error);
}

std::string UnpackedTokenizer::about_file(std::string message) const {
  const std::string from = folder_.string();
  for (size_t at = message.find(from); at != std::string::npos; at = message.find(from, at))
    message.replace(at, from.size(), gguf_.string());
  return message;
}

bool names_gguf(const std::string& tokenizer) {
  std::error_code error;
  return fs::is_regular_file(tokenizer, error) &&
         (util::extension_of(tokenizer) == ".gguf" || gguf::is_gguf(tokenizer));
}

bool holds_tokenizer(const std::string& path) {
  return names_gguf(path) && gguf::Reader(path).metadata().contains("tokenizer.ggml.tokens");
}

}  // namespace fsdp::data
