#pragma once

// Vocabularies learnt from texts, by SentencePiece's library.

#include <cstdint>
#include <string>
#include <vector>

#include "base/util/progress_bar.h"
#include "data/texts/rows.h"

namespace fsdp::data {

struct TrainTokenizerOptions {
  std::vector<std::string> texts;  ///< as in TokenizeOptions, and the next three too
  std::string json_field = "text";
  bool json_lines = false;
  int64_t skip_bad = 0;
  std::string output;  ///< the .model; an older one is replaced
  int64_t vocab_size = 0;
  std::string model_type = "bpe";  ///< or "unigram"
  /// How many lines, drawn at random, to learn from at most.
  int64_t max_lines = 2'000'000;
  int threads = 1;
  util::ByteProgress progress = {};  ///< of reading the texts
};

/// Learns a vocabulary from the lines of texts. Characters that are not in it become bytes, and texts are not
/// normalized, so that every text comes back from its ids (as with Llama's models). The model appears
/// complete or, after an Error, not at all: kUsage for options that contradict each other, kData for texts
/// that cannot be used or are too short for the vocabulary, kIo for the output. Returns the rows left out.
BadRows train_tokenizer(const TrainTokenizerOptions& options);

}  // namespace fsdp::data
