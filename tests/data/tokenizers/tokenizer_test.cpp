#include "data/tokenizers/tokenizer.h"

#include "data/token_fixtures.h"

namespace fsdp::data {
namespace {

TEST(Tokenizer, BytesGoThereAndBack) {
  auto tokenizer = make_tokenizer("bytes");
  EXPECT_EQ(tokenizer->name(), "bytes");
  EXPECT_EQ(tokenizer->vocab_size(), 256);
  std::string text;
  for (int c = 0; c < 256; ++c) text.push_back(static_cast<char>(c));
  std::vector<int64_t> ids;
  tokenizer->encode(text, ids);
  ASSERT_EQ(ids.size(), 256u);
  for (int64_t i = 0; i < 256; ++i) EXPECT_EQ(ids[static_cast<size_t>(i)], i);
  EXPECT_EQ(tokenizer->decode(ids), text);
}

TEST(Tokenizer, EncodesPieceByPiece) {
  auto tokenizer = make_tokenizer("bytes");
  std::vector<int64_t> whole, pieces;
  tokenizer->encode("g\xc3\xa4nse", whole);
  tokenizer->encode("g\xc3", pieces);
  tokenizer->encode("\xa4nse", pieces);
  EXPECT_EQ(pieces, whole);
}

TEST(Tokenizer, RefusesToDecodeWhatItCannotHaveMade) {
  auto tokenizer = make_tokenizer("bytes");
  expect_error(ErrorKind::kData, {"id 256", "position 1"}, [&] { tokenizer->decode({65, 256}); });
  expect_error(ErrorKind::kData, {"id -1"}, [&] { tokenizer->decode({-1}); });
}

TEST(Tokenizer, ListsTheKnownNamesForAnUnknownOne) {
  expect_error(ErrorKind::kUsage, {"\"bpe\"", "bytes"}, [] { make_tokenizer("bpe"); });
}

TEST(Tokenizer, TellsHowToFetchOneOfTheHub) {
  expect_error(ErrorKind::kUsage, {"hf download meta-llama/Llama-3.2-1B --local-dir models/Llama-3.2-1B"},
               [] { make_tokenizer("meta-llama/Llama-3.2-1B"); });
}

TEST(TokenBytes, OfBytesAreAsManyAsTokens) {
  const TokenBytes bytes(*make_tokenizer("bytes"));
  const std::vector<int64_t> ids = {0, 255, 65};
  EXPECT_EQ(bytes.count(ids.data(), 3), 3);
  EXPECT_EQ(bytes.count(ids.data(), 0), 0);
}

TEST(TokenBytes, LeaveOutWhatIsIgnored) {
  const std::vector<int64_t> ids = {65, -100, -100, 66};
  EXPECT_EQ(TokenBytes(*make_tokenizer("bytes")).count(ids.data(), 4), 2);
}

TEST(TokenBytes, AreUnknownForIdsOfAnotherVocabulary) {
  const std::vector<int64_t> ids = {65, 256};
  EXPECT_EQ(TokenBytes(*make_tokenizer("bytes")).count(ids.data(), 2), std::nullopt);
}

}  // namespace
}  // namespace fsdp::data
