#include "data/token_bytes.h"

namespace fsdp::data {

TokenBytes::TokenBytes(const Tokenizer& tokenizer) {
  bytes_.reserve(static_cast<size_t>(tokenizer.vocab_size()));
  for (int64_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::optional<std::string> bytes = tokenizer.bytes_of(id, /*begins=*/false);
    bytes_.push_back(bytes ? static_cast<int32_t>(bytes->size()) : 0);
  }
}

std::optional<int64_t> TokenBytes::count(const int64_t* ids, int64_t length) const {
  int64_t sum = 0;
  for (int64_t i = 0; i < length; ++i) {
    if (ids[i] < 0) continue;
    if (ids[i] >= static_cast<int64_t>(bytes_.size())) return std::nullopt;
    sum += bytes_[static_cast<size_t>(ids[i])];
  }
  return sum;
}

}  // namespace fsdp::data
