#include <algorithm>
#include <charconv>
#include <sstream>

#include "data/vocabulary_reader.h"
#include "util/error.h"

namespace fsdp::data {
namespace fs = std::filesystem;

const char* const kGpt2SplitPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
const char* const kQwen2SplitPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

namespace {

using json = nlohmann::json;

/// A JSON file beside the vocabulary; null when it is not there.
json read_beside(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error)) return nullptr;
  return VocabularyReader(path.string()).parse(read_vocabulary_file(path));
}

/// The class, "GPT2Tokenizer" or "Qwen2Tokenizer"; their fast variants count as these.
std::string tokenizer_class(const fs::path& folder, const json& config) {
  std::string name;
  fs::path source = folder / "tokenizer_config.json";
  if (config.is_object() && VocabularyReader::at(config, "tokenizer_class").is_string()) {
    name = config["tokenizer_class"].get<std::string>();
  } else if (json model = read_beside(folder / "config.json");
             model.is_object() && VocabularyReader::at(model, "model_type").is_string()) {
    const std::string type = model["model_type"].get<std::string>();
    source = folder / "config.json";
    name = type == "gpt2" ? "GPT2Tokenizer" : type.starts_with("qwen") ? "Qwen2Tokenizer" : type;
  } else {
    return "GPT2Tokenizer";
  }
  std::string bare = name.ends_with("Fast") ? name.substr(0, name.size() - 4) : name;
  if (bare != "GPT2Tokenizer" && bare != "Qwen2Tokenizer") {
    VocabularyReader(source.string())
        .refuse("gives its tokenizer the class " + name +
                    ", whose two files (vocab.json and merges.txt) do not define how texts are split",
                "give its tokenizer.json, which save_pretrained() of Hugging Face's AutoTokenizer writes");
  }
  return bare;
}

void read_merges(const fs::path& path, Vocabulary& vocabulary) {
  VocabularyReader reader(path.string());
  std::istringstream lines(read_vocabulary_file(path));
  bool first = true;
  for (std::string line; std::getline(lines, line); first = false) {
    if (line.ends_with('\r')) line.pop_back();
    if (!line.empty() && !(first && line.starts_with("#version"))) reader.merge(line, vocabulary);
  }
}

/// "added_tokens_decoder" of tokenizer_config.json: options of tokens by id.
void read_added_tokens(const VocabularyReader& reader, const json& config, Vocabulary& vocabulary) {
  const json& list = VocabularyReader::at(config, "added_tokens_decoder");
  if (list.is_null()) return;
  reader.object(list, "\"added_tokens_decoder\"");
  for (const auto& [key, options] : list.items()) {
    reader.object(options, "in each of \"added_tokens_decoder\"");
    Vocabulary::AddedToken token = reader.added_token(options);
    int64_t number = -1;
    auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), number);
    if (error != std::errc() || end != key.data() + key.size()) number = -1;
    token.id = reader.id(number, token.content);
    vocabulary.added.push_back(std::move(token));
  }
}

}  // namespace

Vocabulary read_two_files(const fs::path& vocabulary_path, const fs::path& merges_path) {
  const fs::path folder = vocabulary_path.parent_path();
  const json config = read_beside(folder / "tokenizer_config.json");
  const std::string kind = tokenizer_class(folder, config);
  Vocabulary vocabulary;
  vocabulary.source = vocabulary_path.string();
  VocabularyReader reader(vocabulary.source);
  reader.tokens(reader.parse(read_vocabulary_file(vocabulary_path)), vocabulary);
  read_merges(merges_path, vocabulary);
  VocabularyReader config_reader((folder / "tokenizer_config.json").string());
  if (config.is_object()) {
    read_added_tokens(config_reader, config, vocabulary);
    vocabulary.add_prefix_space = config_reader.flag(config, "add_prefix_space", false);
  }
  if (kind == "Qwen2Tokenizer") {
    vocabulary.normalizer.emplace_back().form = UnicodeForm::kNfc;
    vocabulary.splits.emplace_back().pattern = kQwen2SplitPattern;
    if (vocabulary.add_prefix_space) config_reader.unsupported("\"add_prefix_space\"");
  } else {
    vocabulary.splits.emplace_back().pattern = kGpt2SplitPattern;
  }
  if (config.is_object()) vocabulary.end_of_text = config_reader.end_of_text(config, vocabulary);
  if (vocabulary.end_of_text.empty()) vocabulary.end_of_text = usual_end_of_text(vocabulary);
  const bool known = std::any_of(vocabulary.added.begin(), vocabulary.added.end(),
                                 [&](const auto& token) { return token.content == vocabulary.end_of_text; });
  if (!vocabulary.end_of_text.empty() && !known) {
    vocabulary.added.push_back({.content = vocabulary.end_of_text,
                                .id = vocabulary.tokens.at(vocabulary.end_of_text),
                                .special = true});
  }
  return vocabulary;
}

}  // namespace fsdp::data
