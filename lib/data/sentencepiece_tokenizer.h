#pragma once

// SentencePiece models (Kudo and Richardson: SentencePiece, EMNLP 2018), run and trained by its library.

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "data/tokenizer.h"

namespace fsdp::data {

/// The tokenizer of a .model. Throws Error(kData) for a file that is not a model.
std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(const std::filesystem::path& path);

struct TrainTokenizerOptions {
  std::vector<std::string> texts;
  std::string output;  ///< the .model; an older one is replaced
  int64_t vocab_size = 0;
  std::string model_type = "bpe";  ///< or "unigram"
  /// How many lines, drawn at random, to learn from at most.
  int64_t max_lines = 2'000'000;
  int threads = 1;
};

/// Learns a vocabulary from lines of text. Characters that are not in it become bytes, and texts are not
/// normalized, so that every text comes back from its ids (as with Llama's models). The model appears
/// complete or, after an Error, not at all: kUsage for options that contradict each other, kData for texts
/// that cannot be used or are too short for the vocabulary, kIo for the output.
void train_tokenizer(const TrainTokenizerOptions& options);

}  // namespace fsdp::data
