#pragma once

// SentencePiece models (Kudo and Richardson: SentencePiece, EMNLP 2018), executed by its library.

#include <filesystem>
#include <memory>

#include "data/tokenizers/sentencepiece_model.h"
#include "data/tokenizers/tokenizer.h"

namespace fsdp::data {

/// Returns the tokenizer of a .model and the added tokens of `vocabulary`, which are searched in texts first,
/// as in transformers. Throws Error(kData) for a model that the library refuses.
std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(const SentencePieceModel& model,
                                                        const Vocabulary& vocabulary);

/// Returns the tokenizer of a .model and the files beside it. Throws Error(kData) if it is not a model.
std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(const std::filesystem::path& path,
                                                        const TokenizerOptions& options = {});

}  // namespace fsdp::data
