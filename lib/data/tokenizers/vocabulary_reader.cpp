#include "data/tokenizers/vocabulary_reader.h"

#include <algorithm>

#include "base/util/error.h"
#include "base/util/file.h"
#include "base/util/json.h"
#include "data/tokenizers/utf8.h"

namespace fsdp::data {
namespace fs = std::filesystem;
namespace {

constexpr int kMaxDepth = 32;
/// Limit on ids, which index tables; larger than every existing vocabulary.
constexpr int64_t kMaxId = (int64_t{1} << 24) - 1;

}  // namespace

void VocabularyReader::refuse(const std::string& found, const std::string& remedy) const {
  fail(ErrorKind::kData, "the vocabulary ", source_, " ", for_message(found), "; ", remedy);
}

void VocabularyReader::unsupported(const std::string& what) const {
  refuse("has " + what + ", which is not supported and would give other ids", "use a tokenizer without it");
}

void VocabularyReader::damaged(const std::string& what) const {
  refuse(what, "it is damaged or of another kind, so copy it again");
}

VocabularyReader::json VocabularyReader::parse(std::string_view text) const {
  try {
    json parsed = util::parse_json(text, {.deepest_level = kMaxDepth});
    if (!parsed.is_object()) damaged("is not a JSON object");
    return parsed;
  } catch (const util::JsonError& error) {
    damaged(error.what());
  }
}

const VocabularyReader::json& VocabularyReader::at(const json& object, const char* key) {
  static const json null;
  auto found = object.find(key);
  return found == object.end() ? null : *found;
}

bool VocabularyReader::flag(const json& object, const char* key, bool otherwise) const {
  const json& value = at(object, key);
  if (value.is_null()) return otherwise;
  if (!value.is_boolean()) damaged(concat("has \"", key, "\" that is neither true nor false"));
  return value.get<bool>();
}

std::string VocabularyReader::text(const json& object, const char* key) const {
  const json& value = at(object, key);
  if (!value.is_string()) damaged(concat("must have a string \"", key, "\", but has none"));
  return value.get<std::string>();
}

int64_t VocabularyReader::id(const json& value, const std::string& token) const {
  if (!value.is_number_integer() || value.get<int64_t>() < 0 || value.get<int64_t>() > kMaxId) {
    damaged(concat("has the id ", value.dump(-1, ' ', true, json::error_handler_t::replace),
                   " for the token \"", token, "\", outside of 0 to ", kMaxId));
  }
  return value.get<int64_t>();
}

const VocabularyReader::json& VocabularyReader::object(const json& value, const std::string& what) const {
  if (!value.is_object()) damaged(concat("has no object ", what));
  return value;
}

const VocabularyReader::json& VocabularyReader::list(const json& value, const char* key) const {
  const json& parts = at(value, key);
  if (!parts.is_array()) damaged(concat("has a sequence of ", key, " that is not a list"));
  for (const json& part : parts) {
    if (part.is_object() && at(part, "type") == "Sequence") unsupported("a sequence within a sequence");
  }
  return parts;
}

void VocabularyReader::tokens(const json& vocabulary, Vocabulary& out) const {
  object(vocabulary, "of tokens and ids");
  out.tokens.reserve(vocabulary.size());
  for (const auto& [token, value] : vocabulary.items()) out.tokens.emplace(token, id(value, token));
  if (out.tokens.empty()) damaged("has no tokens");
}

void VocabularyReader::merge(const std::string& line, Vocabulary& out) const {
  size_t space = line.find(' ');
  if (space == std::string::npos || space == 0 || space + 1 == line.size() ||
      line.find(' ', space + 1) != std::string::npos) {
    damaged(concat("has the merge \"", line, "\", which is not two tokens separated by a blank"));
  }
  out.merges.emplace_back(line.substr(0, space), line.substr(space + 1));
}

Vocabulary::AddedToken VocabularyReader::added_token(const json& options) const {
  Vocabulary::AddedToken token{.content = text(options, "content")};
  if (token.content.empty()) damaged("has an added token without content");
  token.special = flag(options, "special", false);
  token.normalized = flag(options, "normalized", !token.special);
  token.lstrip = flag(options, "lstrip", false);
  token.rstrip = flag(options, "rstrip", false);
  if (flag(options, "single_word", false)) {
    unsupported(concat("the option \"single_word\" of the token \"", token.content, "\""));
  }
  return token;
}

std::string usual_end_of_text(const Vocabulary& vocabulary) {
  for (const char* name : {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>"}) {
    if (vocabulary.find(name)) return name;
  }
  return "";
}

std::string read_vocabulary_file(const fs::path& path) {
  try {
    if (!fs::is_regular_file(path)) {
      throw util::Error(ErrorKind::kIo, path.string() + " is not a regular file");
    }
    return util::read_file(path);
  } catch (const std::exception& error) {
    fail(ErrorKind::kData, "the vocabulary ", path.string(), " cannot be read (", error.what(),
         "); give the path of a readable file");
  }
}

VocabularyReader::json read_json_if_there(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error)) return nullptr;
  return VocabularyReader(path.string()).parse(read_vocabulary_file(path));
}

}  // namespace fsdp::data
