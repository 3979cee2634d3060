#include "generate_output.h"

#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numbers>
#include <string_view>
#include <utility>

#include "base/util/error.h"
#include "base/util/text.h"

namespace fsdp::apps {

SampleTexts::SampleTexts(const data::Tokenizer& tokenizer, const std::vector<int64_t>& begin,
                         SampleTextOptions options)
    : options_(std::move(options)), is_terminal_(::isatty(STDOUT_FILENO) == 1) {
  // Tokens stand for other bytes at the beginning of a text than within it.
  data::TextDecoder after_prompt(tokenizer);
  for (int64_t id : begin) after_prompt.push(id);
  for (int64_t i = 0; i < options_.num_samples; ++i) texts_.push_back({after_prompt});
}

void SampleTexts::append(SampleText& sample, const std::string& text) {
  const size_t before = sample.text.size();
  sample.text += text;
  size_t end = std::string::npos;
  for (const std::string& stop : options_.stops) {
    const size_t from = before < stop.size() ? 0 : before - stop.size() + 1;
    end = std::min(end, sample.text.find(stop, from));
  }
  if (end == std::string::npos) return;
  sample.ended = true;
  sample.text.resize(end);
}

void SampleTexts::push(int64_t sample, int64_t id) {
  SampleText& own = texts_[static_cast<size_t>(sample)];
  if (own.ended) return;
  ++own.tokens;
  append(own, own.decoder.push(id));
  if (sample == 0) stream(own.ended);
}

bool SampleTexts::have_ended() const {
  return std::all_of(texts_.begin(), texts_.end(), [](const SampleText& sample) { return sample.ended; });
}

void SampleTexts::stream(bool complete) {
  if (!options_.streams) return;
  const std::string& text = texts_.front().text;
  size_t end = text.size();
  // The end of the text may be the beginning of a stop.
  for (const std::string& stop : options_.stops) {
    for (size_t length = std::min(stop.size(), text.size()); length > 0 && !complete; --length) {
      if (text.ends_with(std::string_view(stop).substr(0, length))) end = std::min(end, text.size() - length);
    }
  }
  if (!begun_) print(options_.prompt);
  begun_ = true;
  if (end > printed_) print(text.substr(printed_, end - printed_));
  printed_ = std::max(printed_, end);
}

void SampleTexts::finish_decoding() {
  for (SampleText& sample : texts_) {
    if (!sample.ended) append(sample, sample.decoder.finish());
  }
  stream(/*complete=*/true);
}

void SampleTexts::finish_texts(size_t samples) {
  finish_decoding();
  for (size_t i = 0; i < samples; ++i) {
    if (i > 0) print("---\n");
    if (i > 0 || !options_.streams) print(options_.prompt + texts_[i].text);
    if (!texts_[i].text.ends_with('\n')) print("\n");
  }
}

void SampleTexts::print_json(const std::vector<generate::Sample>& samples) {
  finish_decoding();
  for (size_t i = 0; i < samples.size(); ++i) {
    const generate::Sample& sample = samples[i];
    const SampleText& own = texts_[i];
    std::vector<int64_t> ids = sample.ids;
    if (own.ended) ids.resize(std::min(ids.size(), own.tokens));
    const nlohmann::ordered_json line = {
        {"prompt", options_.prompt},
        {"text", own.text},
        {"tokens", ids.size()},
        {"ids", ids},
        {"tokens_per_second", sample.tokens_per_second()},
        {"ending", own.ended ? "stop_text" : generate::name_of(sample.ending)}};
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
