#pragma once

// Texts to token files, streamed: memory stays at a few MiB whatever the size of the texts.

#include <cstdint>
#include <string>
#include <vector>

namespace fsdp::data {

struct TokenizeOptions {
  std::vector<std::string> texts;  ///< joined in this order
  std::string output;              ///< the token file; an older one is replaced
  std::string tokenizer = "bytes";
  std::string validation_output;  ///< empty: all goes to `output`
  /// Share of each text's bytes, from its end, that goes to validation_output (rounded to whole bytes).
  double validation_fraction = 0.1;
};

struct TokenizeReport {
  int64_t text_bytes = 0;
  int64_t tokens = 0;             ///< in output
  int64_t validation_tokens = 0;  ///< in validation_output
};

/// Writes the token files; both appear complete or, after an Error, not at all. Errors: kUsage for options
/// that contradict each other, kData for a text that is missing, unreadable or empty, kIo for the outputs.
TokenizeReport tokenize(const TokenizeOptions& options);

}  // namespace fsdp::data
