#pragma once

// SentencePiece models (Kudo and Richardson: SentencePiece, EMNLP 2018), run by its library.

#include <filesystem>
#include <memory>

#include "data/tokenizers/sentencepiece_model.h"
#include "data/tokenizers/tokenizer.h"

namespace fsdp::data {

/// The tokenizer of a .model and the added tokens of `vocabulary`, which are looked for in texts first, as transformers
/// does. Throws Error(kData) for a model that the library refuses.
std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(const SentencePieceModel& model,
                                                        const Vocabulary& vocabulary);

/// The same from a file and those beside it. Throws Error(kData) for a file that is not a model.
std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(const std::filesystem::path& path,
                                                        const TokenizerOptions& options = {});

}  // namespace fsdp::data
