#pragma once

// A tokenizer as the metadata from which llama.cpp makes its own.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "base/gguf/format.h"
#include "data/tokenizers/vocabulary.h"

namespace fsdp::gguf {

/// Appends tokens, their kinds, merges or scores, the special tokens, whether texts begin and end with one,
/// and the chat templates, for a name that data::make_tokenizer() takes, or kNoTokenizer
/// (state/gguf_export/export.h). What tokenizer_config.json, chat_template.jinja and the like beside the
/// vocabulary say is included; `model_config` is the model's config.json, which may name special tokens too.
/// Ids up to `vocab_size` that have no token are unused.
///
/// kUsage for a tokenizer that llama.cpp does not have, and for one with more tokens than the model; kData
/// for files that cannot be read.
void describe_tokenizer(const std::string& tokenizer, int64_t vocab_size, const nlohmann::json& model_config,
                        Metadata& metadata);

/// llama.cpp's name for how a vocabulary of bytes splits texts ("tokenizer.ggml.pre"); empty if it has none.
std::string pre_tokenizer_of(const data::Vocabulary& vocabulary);

}  // namespace fsdp::gguf
