#pragma once

// The output of fsdp-generate: texts while they grow, or a JSON object for each sample.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/tokenizers/tokenizer.h"
#include "tools/generate/generate.h"
#include "tools/generate/requests.h"
#include "tools/generate/score.h"
#include "tools/generate/text_until.h"

namespace fsdp::apps {

struct SampleTextOptions {
  std::string prompt{};  ///< printed before each text
  int64_t num_samples = 1;
  bool streams = true;               ///< whether the first text is printed as it grows
  std::vector<std::string> stops{};  ///< a text ends before the first of these, none of which is empty
};

/// Prints the first sample as it grows, with the prompt before it, and keeps the texts of all. On a terminal
/// control characters are shown as \xNN.
class SampleTexts {
 public:
  /// `begin`: the ids that the samples go on from.
  SampleTexts(const data::Tokenizer& tokenizer, const std::vector<int64_t>& begin, SampleTextOptions options);

  void push(int64_t sample, int64_t id);
  /// Whether each text has ended at one of the stops.
  bool have_ended() const;
  /// The first text; complete after finish_texts() or print_json().
  const std::string& first() const { return texts_.front().text(); }
  /// Prints the rest of so many samples: the end of the first, and the others.
  void finish_texts(size_t samples);
  /// Prints a line of JSON for the text of a request: {"id": ..., "text": "...", "tokens": 9, "ending":
  /// "length"}.
  void print_request(const generate::Request& request, const generate::Sample& sample);
  /// Prints a line of JSON for each sample.
  void print_json(const std::vector<generate::Sample>& samples);

 private:
  /// Prints what is known of the first text; `complete`: no more follows.
  void stream(bool complete);
  void finish_decoding();
  void print(const std::string& text) const;

  SampleTextOptions options_;
  bool is_terminal_;
  bool begun_ = false;  ///< whether the prompt has been printed
  size_t printed_ = 0;  ///< bytes of the first text
  std::vector<generate::TextUntil> texts_;
};

/// Prints a score as a line or a JSON object. `bytes`: bytes of the scored tokens' text; nullopt: unknown.
void print_score(const generate::Score& score, std::optional<int64_t> bytes, bool as_json);

/// Prints a line of JSON: {"id": ..., "log_likelihood": -3.2, "tokens": 4, "is_greedy": false}.
void print_request_score(const generate::Request& request, const generate::RequestScore& score);

/// Flushes standard output. Throws Error(kIo) if that fails.
void flush_stdout();

}  // namespace fsdp::apps
