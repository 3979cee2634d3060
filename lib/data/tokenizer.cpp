#include "data/tokenizer.h"

#include "data/utf8.h"

namespace fsdp::data {

std::string Tokenizer::decode(const std::vector<int64_t>& ids) const {
  std::string text;
  bool begins = true;
  for (int64_t id : ids) {
    std::optional<std::string> bytes = bytes_of(id, begins);
    if (!bytes) continue;
    begins = false;
    text += *bytes;
  }
  return text;
}

std::string TextDecoder::push(int64_t id) {
  std::optional<std::string> bytes = tokenizer_.bytes_of(id, begins_);
  if (!bytes) return "";
  begins_ = false;
  pending_ += *bytes;
  size_t whole = pending_.size() - incomplete_utf8_tail(pending_);
  std::string text = pending_.substr(0, whole);
  pending_.erase(0, whole);
  return text;
}

std::string TextDecoder::finish() {
  std::string text;
  text.swap(pending_);
  begins_ = true;
  return text;
}

}  // namespace fsdp::data
