#include "tools/generate/load.h"

#include <gtest/gtest.h>

namespace fsdp::generate {
namespace {

using Ids = std::vector<int64_t>;

/// Bytes, and tokens that are put around texts.
class BytesWithEnds final : public data::Tokenizer {
 public:
  explicit BytesWithEnds(Ids begin, std::optional<int64_t> end) : begin_(std::move(begin)), end_(end) {}
  std::string name() const override { return "bytes with ends"; }
  int64_t vocab_size() const override { return 300; }
  void encode(std::string_view text, Ids& ids) const override {
    for (const char c : text) ids.push_back(c == '^' ? 256 : static_cast<unsigned char>(c));
  }
  std::optional<std::string> bytes_of(int64_t id, bool) const override {
    return std::string(1, static_cast<char>(id));
  }
  Ids begin_of_text() const override { return begin_; }
  std::optional<int64_t> end_of_text() const override { return end_; }

 private:
  Ids begin_;
  std::optional<int64_t> end_;
};

TEST(EncodePrompt, PutsBeforeATextWhatTheTokenizerDoes) {
  const BytesWithEnds tokenizer({256}, 257);
  EXPECT_EQ(encode_prompt(tokenizer, "ab"), (Ids{256, 'a', 'b'}));
  EXPECT_EQ(encode_prompt(tokenizer, ""), Ids{256});
  EXPECT_EQ(encode_prompt(tokenizer, "^ab"), (Ids{256, 'a', 'b'}));  // the text has it
  EXPECT_EQ(encode_prompt(tokenizer, "ab", /*begins=*/false), (Ids{'a', 'b'}));
  EXPECT_EQ(encode_prompt(tokenizer, "", /*begins=*/false), Ids{257});
}

TEST(EncodePrompt, OfATokenizerThatPutsNothingBeforeTextsIsTheText) {
  EXPECT_EQ(encode_prompt(BytesWithEnds({}, 257), "ab"), (Ids{'a', 'b'}));
  EXPECT_EQ(encode_prompt(BytesWithEnds({}, 257), ""), Ids{257});
  EXPECT_EQ(encode_prompt(BytesWithEnds({}, std::nullopt), ""), Ids{'\n'});
}

}  // namespace
}  // namespace fsdp::generate
