#include "data/texts/chat_lengths.h"

#include <gtest/gtest.h>

namespace fsdp::data {
namespace {

TEST(ChatLengths, NamesTheLongestAndHowLongMostAre) {
  ChatLengths lengths;
  EXPECT_TRUE(lengths.empty());
  for (int64_t i = 1; i <= 100; ++i) lengths.add(i == 7 ? 5000 : i, {"a.jsonl", i});
  EXPECT_EQ(lengths.longest(), 5000);
  EXPECT_EQ(
      lengths.text(),
      "half of the conversations have at most 51 tokens, 99 % at most 100; the longest have 5,000 (line 7 of "
      "a.jsonl), 100 (line 100 of a.jsonl) and 99 (line 99 of a.jsonl)");
}

TEST(ChatLengths, OfOneConversation) {
  ChatLengths lengths;
  lengths.add(3, {"a.parquet", 9});
  EXPECT_EQ(
      lengths.text(),
      "half of the conversations have at most 3 tokens, 99 % at most 3; the longest has 3 (row 9 of a.parquet)");
}

}  // namespace
}  // namespace fsdp::data
