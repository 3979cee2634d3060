#pragma once

// SentencePiece models (Kudo and Richardson: SentencePiece, EMNLP 2018), run and trained by its library.

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "data/tokenizer.h"

namespace fsdp::data {

/// A .model. Its normalization looks at a text as a whole, so texts are never cut. Throws Error(kData) for a
/// file that is no model.
std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(const std::filesystem::path& path);

struct TrainTokenizerOptions {
  std::vector<std::string> texts;
  std::string output;  ///< the .model; an older one is replaced
  int64_t vocab_size = 0;
  std::string model_type = "bpe";  ///< or "unigram"
  /// At most so many lines, drawn at random, are learnt from.
  int64_t max_lines = 2'000'000;
  int threads = 1;
};

/// Learns a vocabulary from lines of text. Bytes stand in for characters that are not in it and texts are not
/// normalized, so that every text comes back from its ids (as Llama's models do). The model appears complete
/// or, after an Error, not at all: kUsage for options that contradict each other, kData for texts that cannot
/// be used or are too few for the vocabulary, kIo for the output.
void train_tokenizer(const TrainTokenizerOptions& options);

}  // namespace fsdp::data
