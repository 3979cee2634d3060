#pragma once

// Vocabularies learnt from texts: by SentencePiece's library, or all characters that occur.

#include <cstdint>
#include <string>
#include <vector>

#include "base/util/progress_bar.h"
#include "data/texts/rows.h"

namespace fsdp::data {

struct TrainTokenizerOptions {
  std::vector<std::string> texts;  ///< inputs, as in TokenizeOptions, like the next three options
  std::string json_field = "text";
  bool json_lines = false;
  int64_t skip_bad = 0;
  std::string output;              ///< path of the .model, or .json of characters; replaces an older file
  int64_t vocab_size = 0;          ///< number of tokens; 0 with "characters", which has as many as occur
  std::string model_type = "bpe";  ///< "bpe", "unigram" or "characters"
  /// Maximum number of lines to learn from, drawn at random.
  int64_t max_lines = 2'000'000;
  int threads = 1;
  util::ByteProgress progress = {};  ///< progress of reading the texts
};

/// Learns a vocabulary from the lines of texts. "characters" writes a tokenizer.json of Hugging Face instead,
/// whose tokens are the characters of the texts in the order of their code points. Otherwise characters that
/// are not in it become bytes, and texts are not normalized, so that every text can be decoded from its ids
/// (as with Llama's models). The file appears complete or, after an Error, not at all. Throws Error(kUsage)
/// for options that contradict each other, Error(kData) for texts that cannot be used or are too short for
/// the vocabulary, Error(kIo) for the output. Returns the rows left out.
BadRows train_tokenizer(const TrainTokenizerOptions& options);

}  // namespace fsdp::data
