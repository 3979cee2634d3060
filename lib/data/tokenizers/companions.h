#pragma once

// What the files beside a tokenizer's main file add to it: tokenizer_config.json and added_tokens.json, which
// transformers writes. Read here for every kind of main file, and for the export to GGUF.

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "data/tokenizers/vocabulary.h"

namespace fsdp::data {

struct Companions {
  nlohmann::json config;      ///< tokenizer_config.json; null where there is none
  std::string config_source;  ///< its path
  /// "added_tokens_decoder" of the config; without it added_tokens.json, whose tokens are special where the config
  /// names them as such.
  std::vector<Vocabulary::AddedToken> added;
  std::string added_source;                  ///< the file that `added` is from
  std::string begin_token, end_token;        ///< "bos_token" and "eos_token"; empty: none
  std::optional<bool> adds_begin, adds_end;  ///< "add_bos_token" and "add_eos_token"
};

/// Throws Error(kData) for a file that cannot be read, and for options of tokens that are not supported.
Companions read_companions(const std::filesystem::path& folder);

/// Adds the tokens to those of the main file, whose options they replace, as in transformers, and sets the tokens that
/// begin and end texts. Throws Error(kData) for a token or id that the main file gives another id or token.
void add_companions(const Companions& companions, Vocabulary& vocabulary);

}  // namespace fsdp::data
