#pragma once

// Reads the parts of one JSON file of a tokenizer, and names the file in every refusal.

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "data/vocabulary.h"

namespace fsdp::data {

class VocabularyReader {
 public:
  using json = nlohmann::json;

  explicit VocabularyReader(std::string source) : source_(std::move(source)) {}

  [[noreturn]] void refuse(const std::string& found, const std::string& remedy) const;
  /// For what would give other ids than the vocabulary's author got.
  [[noreturn]] void unsupported(const std::string& what) const;
  [[noreturn]] void damaged(const std::string& what) const;

  /// A JSON object.
  json parse(std::string_view text) const;

  /// The value of a key; null when it is not there.
  static const json& at(const json& object, const char* key);
  bool flag(const json& object, const char* key, bool otherwise) const;
  std::string text(const json& object, const char* key) const;
  int64_t id(const json& value, const std::string& token) const;
  const json& object(const json& value, const std::string& what) const;
  /// The parts of a "Sequence".
  const json& list(const json& value, const char* key) const;

  /// Tokens and ids.
  void tokens(const json& vocabulary, Vocabulary& out) const;
  /// A line of two tokens.
  void merge(const std::string& line, Vocabulary& out) const;
  /// The token that `options` describe; all but its id.
  Vocabulary::AddedToken added_token(const json& options) const;

  /// The eos_token of a tokenizer_config.json; empty when it names none.
  std::string end_of_text(const json& config) const;

  const std::string& source() const { return source_; }

 private:
  std::string source_;
};

bool has_token(const Vocabulary& vocabulary, const std::string& content);

/// The usual name of the token that ends a text, of those in the vocabulary; empty: none.
std::string usual_end_of_text(const Vocabulary& vocabulary);

/// A file that was named by the user, or beside one that was: its absence or fault is one of the data.
std::string read_vocabulary_file(const std::filesystem::path& path);

}  // namespace fsdp::data
