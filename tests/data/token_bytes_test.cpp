#include "data/token_bytes.h"

#include <gtest/gtest.h>

namespace fsdp::data {
namespace {

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
