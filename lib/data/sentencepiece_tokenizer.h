#pragma once

// SentencePiece models (Kudo and Richardson: SentencePiece, EMNLP 2018), run by its library.

#include <filesystem>
#include <memory>

#include "data/tokenizer.h"

namespace fsdp::data {

/// The tokenizer of a .model. Throws Error(kData) for a file that is not a model.
std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(const std::filesystem::path& path);

}  // namespace fsdp::data
