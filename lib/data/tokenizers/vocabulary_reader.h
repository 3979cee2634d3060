#pragma once

// Reads the parts of one JSON file of a tokenizer. Every error names the file.

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "data/tokenizers/vocabulary.h"

namespace fsdp::data {

class VocabularyReader {
 public:
  using json = nlohmann::json;

  explicit VocabularyReader(std::string source) : source_(std::move(source)) {}

  [[noreturn]] void refuse(const std::string& found, const std::string& remedy) const;
  /// Refuses a feature without which ids would differ from those of the vocabulary's author.
  [[noreturn]] void unsupported(const std::string& what) const;
  [[noreturn]] void damaged(const std::string& what) const;

  /// Parses a text. Refuses one that is not a JSON object.
  json parse(std::string_view text) const;

  /// Returns the value of a key; null if there is none.
  static const json& at(const json& object, const char* key);
  bool flag(const json& object, const char* key, bool otherwise) const;
  std::string text(const json& object, const char* key) const;
  int64_t id(const json& value, const std::string& token) const;
  const json& object(const json& value, const std::string& what) const;
  /// Returns the list of a "Sequence".
  const json& list(const json& value, const char* key) const;

  /// Reads tokens and their ids.
  void tokens(const json& vocabulary, Vocabulary& out) const;
  /// Adds the merge of a line, which has two tokens.
  void merge(const std::string& line, Vocabulary& out) const;
  /// Returns the token that `options` describe, without its id.
  Vocabulary::AddedToken added_token(const json& options) const;

  const std::string& source() const { return source_; }

 private:
  std::string source_;
};

/// Returns the first of the usual end-of-text tokens that is in the vocabulary; "" if there is none.
std::string usual_end_of_text(const Vocabulary& vocabulary);

/// Reads a file that the user named, or one beside it. Throws Error(kData) if it cannot be read.
std::string read_vocabulary_file(const std::filesystem::path& path);

/// Reads the JSON object in a file beside it; null if there is no such file.
nlohmann::json read_json_if_there(const std::filesystem::path& path);

}  // namespace fsdp::data
