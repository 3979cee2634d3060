#include "data/bpe_vocabulary.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "data/utf8.h"
#include "util/error.h"
#include "util/file.h"
#include "util/json.h"

namespace fsdp::data {
namespace fs = std::filesystem;

const char* const kGpt2SplitPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

namespace {

using nlohmann::json;
using util::concat;
using util::ErrorKind;
using util::fail;

constexpr int kMaxDepth = 32;
/// Above all vocabularies there are; ids index tables.
constexpr int64_t kMaxId = (int64_t{1} << 24) - 1;

/// Reads the parts of one file, and names it in every refusal.
class Reader {
 public:
  explicit Reader(std::string source) : source_(std::move(source)) {}

  [[noreturn]] void refuse(const std::string& found, const std::string& remedy) const {
    fail(ErrorKind::kData, "the vocabulary ", source_, " ", for_message(found), "; ", remedy);
  }

  [[noreturn]] void unsupported(const std::string& what) const {
    refuse("has " + what + ", which is not supported and would give other ids",
           "use a byte-level BPE tokenizer without it");
  }

  [[noreturn]] void damaged(const std::string& what) const {
    refuse(what, "it is damaged or of another kind, so copy it anew");
  }

  json parse(std::string_view text) const {
    try {
      json parsed = util::parse_json(text, {.deepest_level = kMaxDepth});
      if (!parsed.is_object()) damaged("is no JSON object");
      return parsed;
    } catch (const util::JsonError& error) {
      damaged(error.what());
    }
  }

  /// The value of a key; null when it is not there.
  static const json& at(const json& object, const char* key) {
    static const json null;
    auto found = object.find(key);
    return found == object.end() ? null : *found;
  }

  bool flag(const json& object, const char* key, bool otherwise) const {
    const json& value = at(object, key);
    if (value.is_null()) return otherwise;
    if (!value.is_boolean()) damaged(concat("has \"", key, "\" that is neither true nor false"));
    return value.get<bool>();
  }

  std::string text(const json& object, const char* key) const {
    const json& value = at(object, key);
    if (!value.is_string()) damaged(concat("has no text \"", key, "\" where one was expected"));
    return value.get<std::string>();
  }

  int64_t id(const json& value, const std::string& token) const {
    if (!value.is_number_integer() || value.get<int64_t>() < 0 || value.get<int64_t>() > kMaxId) {
      damaged(concat("has the id ", value.dump(-1, ' ', true, json::error_handler_t::replace),
                     " for the token \"", token, "\" where 0 to ", kMaxId, " was expected"));
    }
    return value.get<int64_t>();
  }

  const json& object(const json& value, const std::string& what) const {
    if (!value.is_object()) damaged(concat("has no object ", what));
    return value;
  }

  void tokens(const json& vocabulary, BpeVocabulary& out) const {
    object(vocabulary, "of tokens and ids");
    out.tokens.reserve(vocabulary.size());
    for (const auto& [token, value] : vocabulary.items()) out.tokens.emplace(token, id(value, token));
    if (out.tokens.empty()) damaged("has no tokens");
  }

  void merge(const std::string& line, BpeVocabulary& out) const {
    size_t space = line.find(' ');
    if (space == std::string::npos || space == 0 || space + 1 == line.size() ||
        line.find(' ', space + 1) != std::string::npos) {
      damaged(
          concat("has the merge \"", line, "\" where two tokens with a blank between them were expected"));
    }
    out.merges.emplace_back(line.substr(0, space), line.substr(space + 1));
  }

  void model(const json& model, BpeVocabulary& out) const {
    object(model, "\"model\"");
    // Files of older versions of tokenizers have no type.
    std::string type = at(model, "type").is_null() ? "BPE" : text(model, "type");
    if (type != "BPE") unsupported(concat("a model of type ", type));
    if (const json& dropout = at(model, "dropout"); !dropout.is_null() && dropout != 0) {
      unsupported("dropout of merges");
    }
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      const json& value = at(model, key);
      if (!value.is_null() && value != "") unsupported(concat("the option \"", key, "\""));
    }
    if (flag(model, "byte_fallback", false)) unsupported("the option \"byte_fallback\"");
    out.ignore_merges = flag(model, "ignore_merges", false);
    tokens(at(model, "vocab"), out);
    const json& merges = at(model, "merges");
    if (!merges.is_array()) damaged("has no list \"merges\"");
    out.merges.reserve(merges.size());
    for (const json& entry : merges) {
      if (entry.is_string()) {
        merge(entry.get_ref<const std::string&>(), out);
      } else if (entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_string()) {
        out.merges.emplace_back(entry[0].get<std::string>(), entry[1].get<std::string>());
      } else {
        damaged("has a merge that is not of two tokens");
      }
    }
  }

  void added_tokens(const json& list, BpeVocabulary& out) const {
    if (list.is_null()) return;
    if (!list.is_array()) damaged("has \"added_tokens\" that is no list");
    for (const json& entry : list) {
      object(entry, "in each of \"added_tokens\"");
      BpeVocabulary::AddedToken token{.content = text(entry, "content")};
      if (token.content.empty()) damaged("has an added token without content");
      token.id = id(at(entry, "id"), token.content);
      token.normalized = flag(entry, "normalized", !flag(entry, "special", false));
      for (const char* option : {"lstrip", "rstrip", "single_word"}) {
        if (flag(entry, option, false)) {
          unsupported(concat("the option \"", option, "\" of the token \"", token.content, "\""));
        }
      }
      out.added.push_back(std::move(token));
    }
  }

  void normalizer(const json& value) const {
    if (value.is_null()) return;
    object(value, "\"normalizer\"");
    std::string type = text(value, "type");
    const json& parts = at(value, "normalizers");
    if (type == "Sequence" && parts.is_array() && parts.empty()) return;
    unsupported("the normalizer " + type);
  }

  /// Returns whether pieces end up as bytes.
  bool pre_tokenizer(const json& value, BpeVocabulary& out) const {
    if (value.is_null()) return false;
    object(value, "\"pre_tokenizer\"");
    std::string type = text(value, "type");
    if (type == "Sequence") {
      const json& parts = at(value, "pretokenizers");
      if (!parts.is_array()) damaged("has a sequence of pre-tokenizers that is no list");
      bool bytes = false;
      for (const json& part : parts) {
        if (bytes) unsupported("a pre-tokenizer behind ByteLevel");
        if (part.is_object() && at(part, "type") == "Sequence") unsupported("a sequence within a sequence");
        bytes = pre_tokenizer(part, out);
      }
      return bytes;
    }
    if (type == "ByteLevel") {
      out.add_prefix_space = flag(value, "add_prefix_space", true);
      if (out.add_prefix_space && !out.splits.empty()) {
        unsupported("\"add_prefix_space\" behind another pre-tokenizer");
      }
      if (flag(value, "use_regex", true)) out.splits.push_back({.pattern = kGpt2SplitPattern});
      return true;
    }
    if (type == "Split") {
      split(value, out);
      return false;
    }
    if (type == "Digits") {
      bool each = flag(value, "individual_digits", false);
      out.splits.push_back({.pattern = each ? "\\p{N}" : "\\p{N}+"});
      return false;
    }
    unsupported("the pre-tokenizer " + type);
  }

  void split(const json& value, BpeVocabulary& out) const {
    const json& pattern = object(at(value, "pattern"), "\"pattern\"");
    BpeVocabulary::Split rule;
    rule.literal = pattern.contains("String");
    rule.pattern = text(pattern, rule.literal ? "String" : "Regex");
    if (rule.pattern.empty()) damaged("has an empty split pattern");
    std::string behavior = text(value, "behavior");
    bool invert = flag(value, "invert", false);
    if (behavior == "Removed" && invert) {
      rule.matches_only = true;
    } else if (behavior != "Isolated") {
      // Isolated gives the same pieces whether inverted or not.
      unsupported(concat("a split with the behavior ", behavior, invert ? " (inverted)" : ""));
    }
    out.splits.push_back(std::move(rule));
  }

  void decoder(const json& value) const {
    if (value.is_null()) return;
    std::string type = text(object(value, "\"decoder\""), "type");
    if (type != "ByteLevel") unsupported("the decoder " + type);
  }

  void post_processor(const json& value) const {
    if (value.is_null()) return;
    std::string type = text(object(value, "\"post_processor\""), "type");
    if (type == "Sequence") {
      const json& parts = at(value, "processors");
      if (!parts.is_array()) damaged("has a sequence of post-processors that is no list");
      for (const json& part : parts) {
        if (part.is_object() && at(part, "type") == "Sequence") unsupported("a sequence within a sequence");
        post_processor(part);
      }
      return;
    }
    for (const char* known : {"ByteLevel", "TemplateProcessing", "BertProcessing", "RobertaProcessing"}) {
      if (type == known) return;
    }
    unsupported("the post-processor " + type);
  }

 private:
  std::string source_;
};

bool has_token(const BpeVocabulary& vocabulary, const std::string& content) {
  return vocabulary.tokens.contains(content) ||
         std::any_of(vocabulary.added.begin(), vocabulary.added.end(),
                     [&](const auto& token) { return token.content == content; });
}

/// The usual name of the token that ends a text, of those in the vocabulary.
std::string usual_end_of_text(const BpeVocabulary& vocabulary) {
  for (const char* name : {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>"}) {
    if (has_token(vocabulary, name)) return name;
  }
  return "";
}

/// A file that was named by the user, or beside one that was: its absence or fault is one of the data.
std::string read_vocabulary_file(const fs::path& path) {
  try {
    if (!fs::is_regular_file(path))
      throw util::Error(ErrorKind::kIo, path.string() + " is not a regular file");
    return util::read_file(path);
  } catch (const std::exception& error) {
    fail(ErrorKind::kData, "the vocabulary ", path.string(), " cannot be read (", error.what(),
         "); give the path of a readable file");
  }
}

}  // namespace

BpeVocabulary parse_tokenizer_json(std::string_view text, const std::string& source) {
  Reader reader(source);
  json root = reader.parse(text);
  BpeVocabulary vocabulary;
  vocabulary.source = source;
  reader.model(Reader::at(root, "model"), vocabulary);
  reader.added_tokens(Reader::at(root, "added_tokens"), vocabulary);
  reader.normalizer(Reader::at(root, "normalizer"));
  if (!reader.pre_tokenizer(Reader::at(root, "pre_tokenizer"), vocabulary)) {
    reader.unsupported("no pre-tokenizer ByteLevel");
  }
  reader.decoder(Reader::at(root, "decoder"));
  reader.post_processor(Reader::at(root, "post_processor"));
  vocabulary.end_of_text = usual_end_of_text(vocabulary);
  return vocabulary;
}

BpeVocabulary read_tokenizer_json(const fs::path& path) {
  BpeVocabulary vocabulary = parse_tokenizer_json(read_vocabulary_file(path), path.string());
  fs::path config_path = path.parent_path() / "tokenizer_config.json";
  std::error_code error;
  if (fs::exists(config_path, error)) {
    Reader reader(config_path.string());
    json config = reader.parse(read_vocabulary_file(config_path));
    json token = Reader::at(config, "eos_token");
    if (token.is_object()) token = json(Reader::at(token, "content"));
    if (token.is_string()) {
      vocabulary.end_of_text = token.get<std::string>();
      if (!has_token(vocabulary, vocabulary.end_of_text)) {
        reader.damaged("names the eos_token \"" + vocabulary.end_of_text + "\", which " + path.string() +
                       " does not have");
      }
    }
  }
  return vocabulary;
}

BpeVocabulary read_gpt2_vocabulary(const fs::path& vocabulary_path, const fs::path& merges_path) {
  BpeVocabulary vocabulary;
  vocabulary.source = vocabulary_path.string();
  Reader reader(vocabulary_path.string());
  reader.tokens(reader.parse(read_vocabulary_file(vocabulary_path)), vocabulary);
  Reader merges(merges_path.string());
  std::string text = read_vocabulary_file(merges_path);
  for (size_t begin = 0; begin < text.size();) {
    size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    if (line.ends_with('\r')) line.pop_back();
    if (!line.empty() && !(begin == 0 && line.starts_with("#version"))) merges.merge(line, vocabulary);
    begin = end + 1;
  }
  vocabulary.splits.push_back({.pattern = kGpt2SplitPattern});
  vocabulary.end_of_text = usual_end_of_text(vocabulary);
  if (!vocabulary.end_of_text.empty()) {
    vocabulary.added.push_back(
        {.content = vocabulary.end_of_text, .id = vocabulary.tokens.at(vocabulary.end_of_text)});
  }
  return vocabulary;
}

}  // namespace fsdp::data
