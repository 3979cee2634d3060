#pragma once

// Files beside a tokenizer's main file: tokenizer_config.json and added_tokens.json, which transformers
// writes. They are read for every kind of main file, and for the export to GGUF.

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "data/tokenizers/vocabulary.h"

namespace fsdp::data {

struct Companions {
  nlohmann::json config;      ///< content of tokenizer_config.json; null if there is none
  std::string config_source;  ///< path of tokenizer_config.json
  /// Tokens of "added_tokens_decoder" in the config, otherwise of added_tokens.json, whose tokens are special
  /// if the config names them as special.
  std::vector<Vocabulary::AddedToken> added;
  std::string added_source;                  ///< path of the file that `added` was read from
  std::string begin_token, end_token;        ///< "bos_token" and "eos_token"; empty: none
  std::optional<bool> adds_begin, adds_end;  ///< "add_bos_token" and "add_eos_token"
};

/// Reads the files in a folder. Throws Error(kData) for unreadable files and unsupported options of tokens.
Companions read_companions(const std::filesystem::path& folder);

/// Adds the tokens to those of the main file, replacing its options of the same tokens, as in transformers,
/// and sets the tokens that begin and end texts. Throws Error(kData) for a token or id that the main file
/// pairs with another id or token.
void add_companions(const Companions& companions, Vocabulary& vocabulary);

}  // namespace fsdp::data
