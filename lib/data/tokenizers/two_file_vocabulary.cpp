#include <algorithm>
#include <sstream>

#include "base/util/error.h"
#include "data/tokenizers/companions.h"
#include "data/tokenizers/vocabulary_reader.h"

namespace fsdp::data {
namespace fs = std::filesystem;

const char* const kGpt2SplitPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
const char* const kLlama3SplitPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const char* const kQwen2SplitPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

namespace {

using json = nlohmann::json;

/// Returns the class, "GPT2Tokenizer" or "Qwen2Tokenizer"; fast variants count as the same class.
std::string tokenizer_class(const fs::path& folder, const json& config) {
  std::string name;
  fs::path source = folder / "tokenizer_config.json";
  if (config.is_object() && VocabularyReader::at(config, "tokenizer_class").is_string()) {
    name = config["tokenizer_class"].get<std::string>();
  } else if (json model = read_json_if_there(folder / "config.json");
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

}  // namespace

Vocabulary read_two_files(const fs::path& vocabulary_path, const fs::path& merges_path) {
  const fs::path folder = vocabulary_path.parent_path();
  const Companions companions = read_companions(folder);
  const json& config = companions.config;
  const std::string kind = tokenizer_class(folder, config);
  Vocabulary vocabulary;
  vocabulary.source = vocabulary_path.string();
  VocabularyReader reader(vocabulary.source);
  reader.tokens(reader.parse(read_vocabulary_file(vocabulary_path)), vocabulary);
  read_merges(merges_path, vocabulary);
  const VocabularyReader config_reader(companions.config_source);
  if (config.is_object()) {
    vocabulary.add_prefix_space = config_reader.flag(config, "add_prefix_space", false);
  }
  if (kind == "Qwen2Tokenizer") {
    vocabulary.normalizer.emplace_back().form = UnicodeForm::kNfc;
    vocabulary.splits.emplace_back().pattern = kQwen2SplitPattern;
    if (vocabulary.add_prefix_space) config_reader.unsupported("\"add_prefix_space\"");
  } else {
    vocabulary.splits.emplace_back().pattern = kGpt2SplitPattern;
  }
  add_companions(companions, vocabulary);
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
