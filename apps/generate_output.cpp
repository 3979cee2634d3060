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
namespace {

/// The beginning of a result.
nlohmann::ordered_json line_of(const generate::Request& request) {
  nlohmann::ordered_json line = nlohmann::ordered_json::object();
  if (!request.id.is_null()) line["id"] = request.id;
  return line;
}

/// Bytes that are no UTF-8 become the replacement character.
void print_line(const nlohmann::ordered_json& line) {
  std::cout << line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << '\n';
  flush_stdout();
}

}  // namespace

SampleTexts::SampleTexts(const data::Tokenizer& tokenizer, const std::vector<int64_t>& begin,
                         SampleTextOptions options)
    : options_(std::move(options)), is_terminal_(::isatty(STDOUT_FILENO) == 1) {
  const data::TextDecoder decoder = generate::decoder_after(tokenizer, begin);
  for (int64_t i = 0; i < options_.num_samples; ++i) texts_.emplace_back(decoder, options_.stops);
}

void SampleTexts::push(int64_t sample, int64_t id) {
  generate::TextUntil& own = texts_[static_cast<size_t>(sample)];
  if (own.has_ended()) return;
  own.push(id);
  if (sample == 0) stream(own.has_ended());
}

bool SampleTexts::have_ended() const { return std::ranges::all_of(texts_, &generate::TextUntil::has_ended); }

void SampleTexts::stream(bool complete) {
  if (!options_.streams) return;
  const std::string& text = first();
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
  for (generate::TextUntil& text : texts_) text.finish();
  stream(/*complete=*/true);
}

void SampleTexts::finish_texts(size_t samples) {
  finish_decoding();
  for (size_t i = 0; i < samples; ++i) {
    if (i > 0) print("---\n");
    if (i > 0 || !options_.streams) print(options_.prompt + texts_[i].text());
    if (!texts_[i].text().ends_with('\n')) print("\n");
  }
}

void SampleTexts::print_request(const generate::Request& request, const generate::Sample& sample) {
  finish_decoding();
  const generate::TextUntil& own = texts_.front();
  nlohmann::ordered_json line = line_of(request);
  line["text"] = own.text();
  line["tokens"] = own.has_ended() ? own.tokens() : sample.ids.size();
  line["ending"] = own.has_ended() ? "stop_text" : generate::name_of(sample.ending);
  print_line(line);
}

void SampleTexts::print_json(const std::vector<generate::Sample>& samples) {
  finish_decoding();
  for (size_t i = 0; i < samples.size(); ++i) {
    const generate::Sample& sample = samples[i];
    const generate::TextUntil& own = texts_[i];
    std::vector<int64_t> ids = sample.ids;
    if (own.has_ended()) ids.resize(std::min(ids.size(), own.tokens()));
    const nlohmann::ordered_json line = {
        {"prompt", options_.prompt},
        {"text", own.text()},
        {"tokens", ids.size()},
        {"ids", ids},
        {"tokens_per_second", sample.tokens_per_second()},
        {"ending", own.has_ended() ? "stop_text" : generate::name_of(sample.ending)}};
    print_line(line);
  }
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

void print_request_score(const generate::Request& request, const generate::RequestScore& score) {
  nlohmann::ordered_json line = line_of(request);
  line["log_likelihood"] = score.log_likelihood;
  line["tokens"] = score.tokens;
  line["is_greedy"] = score.is_greedy;
  print_line(line);
}

void flush_stdout() {
  if (!std::cout.flush()) util::fail(util::ErrorKind::kIo, "cannot write to standard output");
}

}  // namespace fsdp::apps
