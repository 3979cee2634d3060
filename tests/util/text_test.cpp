#include "util/text.h"

#include <gtest/gtest.h>

namespace fsdp::util {
namespace {

TEST(Text, WritesThousandsSeparators) {
  EXPECT_EQ(with_commas(0), "0");
  EXPECT_EQ(with_commas(999), "999");
  EXPECT_EQ(with_commas(1234567), "1,234,567");
  EXPECT_EQ(with_commas(-1234), "-1,234");
}

TEST(Text, WritesBytesWithABinaryUnit) {
  EXPECT_EQ(human_bytes(12), "12 B");
  EXPECT_EQ(human_bytes(1536), "1.5 KiB");
  EXPECT_EQ(human_bytes(int64_t{3} << 30), "3.0 GiB");
}

TEST(Text, WritesDurationsInTheLargestTwoUnits) {
  EXPECT_EQ(human_duration(59.4), "59s");
  EXPECT_EQ(human_duration(125), "2m05s");
  EXPECT_EQ(human_duration(3 * 3600 + 7 * 60), "3h07m");
}

TEST(Text, FindsTheNearestWord) {
  EXPECT_EQ(nearest("sequence_lenght", {"steps", "sequence_length"}), "sequence_length");
  EXPECT_EQ(nearest("banana", {"steps", "sequence_length"}), "");
}

}  // namespace
}  // namespace fsdp::util
