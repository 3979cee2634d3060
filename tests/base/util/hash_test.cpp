#include "base/util/hash.h"

#include <gtest/gtest.h>

#include <string>

namespace fsdp::util {
namespace {

TEST(Crc32c, AgreesWithTheVectorsOfTheRfc) {
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
}

}  // namespace
}  // namespace fsdp::util
