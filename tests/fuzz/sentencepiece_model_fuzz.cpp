// The reader of SentencePiece models, and libsentencepiece with what it lets pass: a text goes there and
// back.

#include <memory>
#include <string_view>
#include <vector>

#include "data/tokenizers/sentencepiece_tokenizer.h"
#include "fuzz/fuzz_target.h"

namespace fsdp::fuzz {

int sentencepiece_model(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  refuse_or_read([&] {
    const data::SentencePieceModel model = data::parse_sentencepiece_model(bytes, "tokenizer.model");
    data::Vocabulary vocabulary;
    vocabulary.source = "tokenizer.model";
    const auto tokenizer = data::make_sentencepiece_tokenizer(model, vocabulary);
    std::vector<int64_t> ids;
    tokenizer->encode(bytes.substr(0, 512), ids);
    tokenizer->encode("Caf\u00e9 \u212b\uff21\u00bd 12  the\u3000<s>\n\u65e5\u672c \U0001f600", ids);
    tokenizer->decode(ids);
  });
  return 0;
}

}  // namespace fsdp::fuzz
