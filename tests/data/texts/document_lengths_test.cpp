#include "data/texts/document_lengths.h"

#include <gtest/gtest.h>

namespace fsdp::data {
namespace {

TEST(DocumentLengths, NamesTheLongestAndHowLongMostAre) {
  DocumentLengths lengths;
  EXPECT_EQ(lengths.documents(), 0);
  for (int64_t i = 1; i <= 100; ++i) lengths.add(i == 7 ? 5000 : i, {"a.jsonl", i});
  EXPECT_EQ(lengths.longest(), 5000);
  const std::string text = lengths.text("conversations");
  EXPECT_EQ(
      text.substr(0, text.find('\n')),
      "half of the conversations have at most 51 tokens, 99 % at most 100; the longest have 5,000 (line 7 of "
      "a.jsonl), 100 (line 100 of a.jsonl) and 99 (line 99 of a.jsonl)");
}

TEST(DocumentLengths, SaysWhatALengthWouldCut) {
  DocumentLengths lengths;
  for (const int64_t tokens : {513, 514, 1025, 1026, 2922}) lengths.add(tokens, {.path = "a.txt"});
  EXPECT_EQ(
      lengths.text("documents"),
      "half of the documents have at most 1,025 tokens, 99 % at most 2,922; the longest have 2,922 (a.txt), "
      "1,026 (a.txt) and 1,025 (a.txt)\n"
      "data.sequence_length = 512 would cut 4 of 5 documents (80.0 %), with 3,435 tokens (57.2 %) behind the cuts\n"
      "data.sequence_length = 1024 would cut 2 of 5 documents (40.0 %), with 1,898 tokens (31.6 %) behind the cuts\n"
      "data.sequence_length = 2048 would cut 1 of 5 documents (20.0 %), with 873 tokens (14.6 %) behind the cuts");
}

// The histogram has a bucket for each length up to 16,384, and 8,192 buckets for each doubling above.
TEST(DocumentLengths, AreExactUpToSomeLengthAndCloseAbove) {
  for (const int64_t tokens : {int64_t{0}, int64_t{1}, int64_t{16'383}, int64_t{16'384}, int64_t{16'385},
                               int64_t{20'001}, int64_t{1'000'001}, int64_t{1} << 40, int64_t{1} << 62}) {
    DocumentLengths lengths;
    lengths.add(tokens, {.path = "a"});
    EXPECT_EQ(lengths.at_most(0.5), tokens);  // no more than the longest
    for (int i = 0; i < 3; ++i) lengths.add(tokens / 2, {.path = "a"});
    const int64_t half = lengths.at_most(0.5);
    EXPECT_GE(half, tokens / 2);
    EXPECT_LE(half - tokens / 2, tokens / 2 <= DocumentLengths::kExactTokens ? 0 : tokens / 2 / 8192);
    EXPECT_EQ(lengths.at_most(1), tokens);
  }
}

TEST(DocumentLengths, NamesTheOnlyOne) {
  DocumentLengths lengths;
  lengths.add(3, {"a.parquet", 9, "row"});
  EXPECT_EQ(
      lengths.text("conversations"),
      "half of the conversations have at most 3 tokens, 99 % at most 3; the longest has 3 (row 9 of a.parquet)");
}

}  // namespace
}  // namespace fsdp::data
