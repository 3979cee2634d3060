// The reader of tokenizer.json, and what is made of it: a text goes there and back through the tokenizer.

#include <memory>
#include <string_view>
#include <vector>

#include "data/tokenizers/vocabulary.h"
#include "data/tokenizers/vocabulary_tokenizer.h"
#include "fuzz/fuzz_target.h"

namespace fsdp::fuzz {

int tokenizer_json(const uint8_t* data, size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  refuse_or_read([&] {
    const data::Vocabulary vocabulary = data::parse_tokenizer_json(text, "tokenizer.json");
    const std::unique_ptr<data::Tokenizer> made = data::make_tokenizer(vocabulary);
    const data::Tokenizer& tokenizer = *made;
    std::string_view sample = text.substr(0, 512);
    std::vector<int64_t> ids, pieces;
    tokenizer.encode(sample, ids);
    tokenizer.decode(ids);
    size_t cut = tokenizer.encode_some(sample, sample.size() / 2, pieces);
    tokenizer.encode(sample.substr(cut), pieces);
    if (pieces != ids) throw std::logic_error("a text in pieces has other ids than the whole");
  });
  return 0;
}

}  // namespace fsdp::fuzz
