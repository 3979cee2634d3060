// The readers of tekken.json and of tiktoken's files, and what is made of them: a text goes there and back.

#include <memory>
#include <string_view>
#include <vector>

#include "data/tokenizers/rank_vocabulary.h"
#include "data/tokenizers/vocabulary_tokenizer.h"
#include "fuzz/fuzz_target.h"

namespace fsdp::fuzz {

int rank_vocabulary(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  refuse_or_read([&] {
    const data::Vocabulary vocabulary = text.starts_with('{') ? data::parse_tekken(text, "tekken.json")
                                                              : data::parse_tiktoken(text, "a.tiktoken");
    const auto tokenizer = data::make_tokenizer(vocabulary);
    const std::string_view sample = text.substr(0, 512);
    std::vector<int64_t> ids, pieces;
    tokenizer->encode(sample, ids);
    tokenizer->decode(ids);
    const size_t cut = tokenizer->encode_some(sample, sample.size() / 2, pieces);
    tokenizer->encode(sample.substr(cut), pieces);
    if (pieces != ids) throw std::logic_error("a text in pieces has other ids than the whole");
  });
  return 0;
}

}  // namespace fsdp::fuzz
