#include "tools/generate/text_until.h"

#include <algorithm>

namespace fsdp::generate {

data::TextDecoder decoder_after(const data::Tokenizer& tokenizer, const std::vector<int64_t>& ids) {
  data::TextDecoder decoder(tokenizer);
  for (const int64_t id : ids) decoder.push(id);
  return decoder;
}

void TextUntil::push(int64_t id) {
  if (has_ended_) return;
  ++tokens_;
  append(decoder_.push(id));
}

const std::string& TextUntil::finish() {
  if (!has_ended_) append(decoder_.finish());
  return text_;
}

void TextUntil::append(const std::string& text) {
  const size_t before = text_.size();
  text_ += text;
  size_t end = std::string::npos;
  for (const std::string& stop : stops_) {
    const size_t from = before < stop.size() ? 0 : before - stop.size() + 1;
    end = std::min(end, text_.find(stop, from));
  }
  if (end == std::string::npos) return;
  has_ended_ = true;
  text_.resize(end);
}

}  // namespace fsdp::generate
