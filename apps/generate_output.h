#pragma once

// The output of fsdp-generate: texts while they grow, or a JSON object for each sample.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/tokenizers/tokenizer.h"
#include "tools/generate/generate.h"
#include "tools/generate/score.h"

namespace fsdp::apps {

/// Prints the first sample as it grows, with the prompt before it, and keeps the texts of all. On a terminal
/// control characters are shown as \xNN.
class SampleTexts {
 public:
  /// `begin`: the ids that the samples go on from. Prints nothing before finish_texts() unless `streams`.
  SampleTexts(const data::Tokenizer& tokenizer, const std::vector<int64_t>& begin, std::string prompt,
              int64_t num_samples, bool streams);

  void push(int64_t sample, int64_t id);
  /// Prints the rest of so many samples: the end of the first, and the others.
  void finish_texts(size_t samples);
  /// Prints a line of JSON for each sample.
  void print_json(const std::vector<generate::Sample>& samples);

 private:
  void finish_decoding();
  void print(const std::string& text) const;

  std::string prompt_;
  bool streams_, is_terminal_;
  bool begun_ = false;  ///< whether the first sample has a token
  std::vector<data::TextDecoder> decoders_;
  std::vector<std::string> texts_;
};

/// Prints a score as a line or a JSON object. `bytes`: bytes of the scored tokens' text; nullopt: unknown.
void print_score(const generate::Score& score, std::optional<int64_t> bytes, bool as_json);

/// Flushes standard output. Throws Error(kIo) if that fails.
void flush_stdout();

}  // namespace fsdp::apps
