#include "config/value.h"

#include <gtest/gtest.h>

#include <limits>

namespace fsdp::config {
namespace {

TEST(TomlText, FloatsAreShortAndAlwaysFloats) {
  EXPECT_EQ(toml_text(60.0), "60.0");
  EXPECT_EQ(toml_text(0.1), "0.1");
  EXPECT_EQ(toml_text(1e-5), "1e-5");
  EXPECT_EQ(toml_text(1e-10), "1e-10");
  EXPECT_EQ(toml_text(1e300), "1e+300");
  EXPECT_EQ(toml_text(-0.0), "-0.0");
  EXPECT_EQ(toml_text(std::numeric_limits<double>::infinity()), "inf");
}

TEST(TomlText, EscapesWhatTomlReserves) {
  EXPECT_EQ(quoted_text("a\"b\\c"), R"("a\"b\\c")");
  EXPECT_EQ(quoted_text("a\nb\tc\x01\x7f"), R"("a\nb\tc\u0001\u007F")");
  EXPECT_EQ(quoted_text("\xC3\xA4"), "\"\xC3\xA4\"");
}

TEST(TomlText, WritesEveryType) {
  EXPECT_EQ(toml_text(Value(true)), "true");
  EXPECT_EQ(toml_text(Value(int64_t{-3})), "-3");
  EXPECT_EQ(toml_text(Value(std::vector<std::string>{"a", "b"})), R"(["a", "b"])");
  EXPECT_EQ(toml_text(Value(std::vector<double>{0.9, 1})), "[0.9, 1.0]");
  EXPECT_EQ(
      toml_text(Value(std::vector<optim::ParameterGroupOptions>{
          {.pattern = {"a", "b*"}, .lr_scale = 2}, {.pattern = {"c"}, .lr = 0.5, .weight_decay = 0}})),
      R"([{ pattern = ["a", "b*"], lr_scale = 2.0 }, { pattern = ["c"], lr = 0.5, weight_decay = 0.0 }])");
  EXPECT_EQ(toml_text(Value(std::vector<double>{})), "[]");
}

TEST(Clipped, NeverCutsACharacterInHalf) {
  EXPECT_EQ(clipped("abc", 3), "abc");
  EXPECT_EQ(clipped("abcd", 3), "abc...");
  EXPECT_EQ(clipped("ab\xC3\xA4z", 3), "ab...");
}

}  // namespace
}  // namespace fsdp::config
