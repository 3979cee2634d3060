#include "data/decode.h"

#include <algorithm>
#include <string>
#include <vector>

namespace fsdp::data {
namespace {
constexpr int64_t kDecodedTokens = 1 << 16;
}

void decode(const TokenFiles& files, const Tokenizer& tokenizer, int64_t begin, int64_t count,
            const std::function<void(std::string_view)>& write) {
  TextDecoder decoder(tokenizer);
  std::vector<int64_t> ids;
  for (const int64_t end = begin + count; begin < end; begin += kDecodedTokens) {
    ids.resize(static_cast<size_t>(std::min(kDecodedTokens, end - begin)));
    files.read(begin, static_cast<int64_t>(ids.size()), ids.data());
    std::string text;
    for (int64_t id : ids) text += decoder.push(id);
    write(text);
  }
  write(decoder.finish());
}

}  // namespace fsdp::data
