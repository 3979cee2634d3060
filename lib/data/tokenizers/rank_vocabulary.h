#pragma once

// Vocabularies of bytes by rank, as tiktoken has them: Mistral's tekken.json, and files of lines of a token in base64 and
// its rank. Of all pairs of neighbouring tokens the one whose bytes together have the lowest rank is merged first.

#include <filesystem>
#include <string>
#include <string_view>

#include "data/tokenizers/vocabulary.h"

namespace fsdp::data {

/// tekken.json, with what the files beside it add (companions.h). Texts begin with <s>. The names of special tokens in
/// texts are these tokens, as in the tokenizer.json of these models; mistral-common takes them for text. Throws
/// Error(kData) for a file that is damaged.
Vocabulary read_tekken(const std::filesystem::path& path);
Vocabulary parse_tekken(std::string_view text, const std::string& source);

/// Whether a file begins as one of tiktoken does.
bool is_tiktoken(const std::filesystem::path& path);

/// A file of tiktoken. How texts are split and which tokens are special is not in it, so that only known files are
/// read: cl100k_base, o200k_base, those of Llama 3 and Qwen. Throws Error(kData) for others.
Vocabulary read_tiktoken(const std::filesystem::path& path);

/// The tokens of lines of tiktoken, without a split. Throws Error(kData) for a text that is damaged.
Vocabulary parse_tiktoken(std::string_view text, const std::string& source);

}  // namespace fsdp::data
