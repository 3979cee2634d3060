#include "data/tokenizers/companions.h"

#include <algorithm>
#include <charconv>
#include <unordered_map>
#include <unordered_set>

#include "base/util/error.h"
#include "data/tokenizers/vocabulary_reader.h"

namespace fsdp::data {
namespace fs = std::filesystem;
namespace {

using json = nlohmann::json;

/// Returns the text of a token written as a text or as an object with "content"; "" if there is none.
std::string token_text(const json& config, const char* key) {
  const json* token = &VocabularyReader::at(config, key);
  if (token->is_object()) token = &VocabularyReader::at(*token, "content");
  return token->is_string() ? token->get<std::string>() : "";
}

std::optional<bool> optional_flag(const json& config, const char* key) {
  const json& value = VocabularyReader::at(config, key);
  return value.is_boolean() ? std::optional(value.get<bool>()) : std::nullopt;
}

/// Reads "added_tokens_decoder": options of tokens by id.
std::vector<Vocabulary::AddedToken> tokens_by_id(const VocabularyReader& reader, const json& list) {
  std::vector<Vocabulary::AddedToken> tokens;
  reader.object(list, "\"added_tokens_decoder\"");
  for (const auto& [key, options] : list.items()) {
    reader.object(options, "in each of \"added_tokens_decoder\"");
    Vocabulary::AddedToken token = reader.added_token(options);
    int64_t number = -1;
    auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), number);
    if (error != std::errc() || end != key.data() + key.size()) number = -1;
    token.id = reader.id(number, token.content);
    tokens.push_back(std::move(token));
  }
  return tokens;
}

/// Returns the texts that a tokenizer_config.json lists as special tokens: bos_token,
/// additional_special_tokens and so on.
std::unordered_set<std::string> special_texts(const json& config) {
  std::unordered_set<std::string> texts;
  if (!config.is_object()) return texts;
  for (const auto& [key, value] : config.items()) {
    if (key.ends_with("_token")) texts.insert(token_text(config, key.c_str()));
    if (key != "additional_special_tokens" && key != "extra_special_tokens") continue;
    for (const json& each : value) {
      if (each.is_string()) texts.insert(each.get<std::string>());
      if (each.is_object()) texts.insert(token_text(each, "content"));
    }
  }
  return texts;
}

/// Reads added_tokens.json: ids by text.
std::vector<Vocabulary::AddedToken> tokens_by_text(const VocabularyReader& reader, const json& ids,
                                                   const json& config) {
  std::vector<Vocabulary::AddedToken> tokens;
  const auto special = special_texts(config);
  for (const auto& [content, id] : ids.items()) {
    if (content.empty()) reader.damaged("has an added token without content");
    const bool is_special = special.contains(content);
    tokens.push_back(
        {.content = content, .id = reader.id(id, content), .normalized = !is_special, .special = is_special});
  }
  return tokens;
}

}  // namespace

Companions read_companions(const fs::path& folder) {
  Companions out;
  const fs::path config_path = folder / "tokenizer_config.json", added_path = folder / "added_tokens.json";
  out.config = read_json_if_there(config_path);
  out.config_source = config_path.string();
  const VocabularyReader reader(config_path.string());
  bool has_tokens = false;
  if (out.config.is_object()) {
    out.begin_token = token_text(out.config, "bos_token");
    out.end_token = token_text(out.config, "eos_token");
    out.adds_begin = optional_flag(out.config, "add_bos_token");
    out.adds_end = optional_flag(out.config, "add_eos_token");
    if (const json& list = VocabularyReader::at(out.config, "added_tokens_decoder"); !list.is_null()) {
      out.added = tokens_by_id(reader, list);
      out.added_source = config_path.string();
      has_tokens = true;
    }
  }
  if (!has_tokens) {
    if (const json ids = read_json_if_there(added_path); ids.is_object()) {
      out.added = tokens_by_text(VocabularyReader(added_path.string()), ids, out.config);
      out.added_source = added_path.string();
    }
  }
  std::stable_sort(out.added.begin(), out.added.end(),
                   [](const auto& a, const auto& b) { return a.id < b.id; });
  return out;
}

void add_companions(const Companions& companions, Vocabulary& vocabulary) {
  const VocabularyReader reader(companions.added_source);
  auto disagree = [&](const Vocabulary::AddedToken& token, const std::string& other) {
    reader.refuse(concat("gives the token \"", token.content, "\" the id ", token.id, ", but ",
                         vocabulary.source, " has ", other),
                  "make the two files agree, as save_pretrained() of Hugging Face's AutoTokenizer does");
  };
  std::unordered_map<int64_t, std::string> texts;
  if (!companions.added.empty()) {
    for (const auto& [text, id] : vocabulary.tokens) texts.emplace(id, text);
    for (const auto& token : vocabulary.added) texts.insert_or_assign(token.id, token.content);
  }
  for (const Vocabulary::AddedToken& token : companions.added) {
    const auto known = std::find_if(vocabulary.added.begin(), vocabulary.added.end(),
                                    [&](const auto& each) { return each.content == token.content; });
    const auto plain = vocabulary.tokens.find(token.content);
    const bool is_added = known != vocabulary.added.end();
    if (is_added || plain != vocabulary.tokens.end()) {
      const int64_t id = is_added ? known->id : plain->second;
      if (id != token.id) disagree(token, concat("the id ", id, " for it"));
    } else if (const auto other = texts.find(token.id); other != texts.end()) {
      disagree(token, concat("the token \"", other->second, "\" with this id"));
    }
    if (is_added) {
      *known = token;
    } else {
      vocabulary.added.push_back(token);
    }
  }
  const VocabularyReader config(companions.config_source);
  if (!companions.end_token.empty()) {
    if (!vocabulary.find(companions.end_token)) {
      config.damaged("names the eos_token \"" + companions.end_token + "\", which " + vocabulary.source +
                     " does not have");
    }
    vocabulary.end_of_text = companions.end_token;
  }
  const auto put = [&](std::optional<bool> adds, const std::string& token,
                       std::optional<std::vector<int64_t>>& ids) {
    if (ids || !adds) return;  // set by a post-processor
    ids.emplace();
    if (const auto id = vocabulary.find(token); *adds && id) ids->push_back(*id);
  };
  put(companions.adds_begin, companions.begin_token, vocabulary.begin_ids);
  put(companions.adds_end, companions.end_token, vocabulary.end_ids);
}

}  // namespace fsdp::data
