#pragma once

// Vocabularies of bytes by rank, as in tiktoken: Mistral's tekken.json, and files with a token in base64 and
// its rank on each line. Of all pairs of neighbouring tokens, the pair whose joined bytes have the lowest
// rank is merged first.

#include <filesystem>
#include <string>
#include <string_view>

#include "data/tokenizers/vocabulary.h"

namespace fsdp::data {

/// Reads tekken.json, and the files beside it (companions.h). Texts begin with <s>. Names of special tokens
/// in texts are these tokens, as in the tokenizer.json of these models; mistral-common treats them as text.
/// Throws Error(kData) for a file that is damaged.
Vocabulary read_tekken(const std::filesystem::path& path);
Vocabulary parse_tekken(std::string_view text, const std::string& source);

/// Whether a file begins as tiktoken's files do.
bool is_tiktoken(const std::filesystem::path& path);

/// Reads a file of tiktoken. The file does not record how texts are split and which tokens are special, so
/// only known files are read: cl100k_base, o200k_base, those of Llama 3 and Qwen. Throws Error(kData) for
/// others.
Vocabulary read_tiktoken(const std::filesystem::path& path);

/// Parses the tokens in lines of tiktoken, without a split. Throws Error(kData) for a text that is damaged.
Vocabulary parse_tiktoken(std::string_view text, const std::string& source);

}  // namespace fsdp::data
