#include "generate_output.h"

#include <unistd.h>

#include <iostream>
#include <nlohmann/json.hpp>
#include <numbers>

#include "base/util/error.h"
#include "base/util/text.h"

namespace fsdp::apps {

SampleTexts::SampleTexts(const data::Tokenizer& tokenizer, const std::vector<int64_t>& begin,
                         std::string prompt, int64_t num_samples, bool streams)
    : prompt_(std::move(prompt)),
      streams_(streams),
      is_terminal_(::isatty(STDOUT_FILENO) == 1),
      texts_(static_cast<size_t>(num_samples)) {
  // Tokens stand for other bytes at the beginning of a text than within it.
  data::TextDecoder after_prompt(tokenizer);
  for (int64_t id : begin) after_prompt.push(id);
  decoders_ = std::vector<data::TextDecoder>(texts_.size(), after_prompt);
}

void SampleTexts::push(int64_t sample, int64_t id) {
  const auto i = static_cast<size_t>(sample);
  const std::string text = decoders_[i].push(id);
  if (streams_ && i == 0) print(begun_ ? text : prompt_ + text);
  begun_ = begun_ || i == 0;
  texts_[i] += text;
}

void SampleTexts::finish_decoding() {
  for (size_t i = 0; i < texts_.size(); ++i) {
    const std::string rest = decoders_[i].finish();
    texts_[i] += rest;
    if (streams_ && i == 0) print(begun_ ? rest : prompt_ + rest);
  }
}

void SampleTexts::finish_texts(size_t samples) {
  finish_decoding();
  for (size_t i = 0; i < samples; ++i) {
    if (i > 0) print("---\n");
    if (i > 0 || !streams_) print(prompt_ + texts_[i]);
    if (!texts_[i].ends_with('\n')) print("\n");
  }
}

void SampleTexts::print_json(const std::vector<generate::Sample>& samples) {
  finish_decoding();
  for (size_t i = 0; i < samples.size(); ++i) {
    const generate::Sample& sample = samples[i];
    const nlohmann::ordered_json line = {{"prompt", prompt_},
                                         {"text", texts_[i]},
                                         {"tokens", sample.ids.size()},
                                         {"ids", sample.ids},
                                         {"tokens_per_second", sample.tokens_per_second()},
                                         {"ending", generate::name_of(sample.ending)}};
    // Bytes that are no UTF-8 become the replacement character.
    std::cout << line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << '\n';
  }
  flush_stdout();
}

void SampleTexts::print(const std::string& text) const {
  if (text.empty()) return;
  std::cout << (is_terminal_ ? util::printable(text) : text);
  flush_stdout();
}

void print_score(const generate::Score& score, std::optional<int64_t> bytes, bool as_json) {
  std::optional<double> bits_per_byte;
  if (bytes && *bytes > 0) bits_per_byte = score.nats / std::numbers::ln2 / static_cast<double>(*bytes);
  if (as_json) {
    nlohmann::ordered_json line = {{"nats", score.nats},
                                   {"tokens", score.tokens},
                                   {"nats_per_token", score.nats_per_token()},
                                   {"perplexity", score.perplexity()}};
    line["bits_per_byte"] = bits_per_byte ? nlohmann::ordered_json(*bits_per_byte) : nullptr;
    std::cout << line.dump() << '\n';
  } else {
    std::cout << util::fixed(score.nats_per_token(), 4) << " nats per token, perplexity "
              << util::fixed(score.perplexity(), 2);
    if (bits_per_byte) std::cout << ", " << util::fixed(*bits_per_byte, 4) << " bits per byte";
    std::cout << " over " << util::with_commas(score.tokens) << " tokens\n";
  }
  flush_stdout();
}

void flush_stdout() {
  if (!std::cout.flush()) util::fail(util::ErrorKind::kIo, "cannot write to standard output");
}

}  // namespace fsdp::apps
