#include "base/util/version.h"

#include <gtest/gtest.h>

#include <regex>

namespace fsdp::util {
namespace {

TEST(Version, HasThreeNumbers) {
  EXPECT_TRUE(std::regex_match(version(), std::regex("[0-9]+\\.[0-9]+\\.[0-9]+"))) << version();
}

}  // namespace
}  // namespace fsdp::util
