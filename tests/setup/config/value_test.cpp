#include "setup/config/value.h"

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

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
using Strings = std::vector<std::string>;
using Floats = std::vector<double>;

TEST(Constraint, BoundsAreInclusiveUnlessTheySayOtherwise) {
  EXPECT_TRUE(allows(between(1, 3), Value(int64_t{1})));
  EXPECT_TRUE(allows(between(1, 3), Value(int64_t{3})));
  EXPECT_FALSE(allows(between(1, 3), Value(int64_t{0})));
  EXPECT_FALSE(allows(between(1, 3), Value(int64_t{4})));
  EXPECT_FALSE(allows(above(0), Value(0.0)));
  EXPECT_TRUE(allows(above(0), Value(1e-300)));
  EXPECT_TRUE(allows(from_up_to_below(0, 1), Value(0.0)));
  EXPECT_FALSE(allows(from_up_to_below(0, 1), Value(1.0)));
}

TEST(Constraint, NeverAllowsNanAndInfinityOnlyWhereItIsNamed) {
  EXPECT_FALSE(allows({}, Value(kNan)));
  EXPECT_FALSE(allows({}, Value(kInfinity)));
  EXPECT_FALSE(allows(at_least(0), Value(kInfinity)));
  EXPECT_FALSE(allows(at_least(0), Value(Floats{0.0, kNan})));
  EXPECT_TRUE(allows({.min = 1, .also = kInfinity}, Value(kInfinity)));
  EXPECT_FALSE(allows({.min = 1, .also = kInfinity}, Value(-kInfinity)));
}

TEST(Constraint, AllowsOneMoreValueOutsideOfTheBounds) {
  Constraint axis{.min = 1, .also = -1};
  EXPECT_TRUE(allows(axis, Value(int64_t{-1})));
  EXPECT_FALSE(allows(axis, Value(int64_t{0})));
  EXPECT_FALSE(allows(axis, Value(int64_t{-2})));
  EXPECT_EQ(expectation(axis, Value(int64_t{1})), "an integer >= 1, or -1");
}

TEST(Constraint, ChoicesAreOfAnyType) {
  EXPECT_TRUE(allows(one_of({"a", "b"}), Value(std::string("b"))));
  EXPECT_FALSE(allows(one_of({"a", "b"}), Value(std::string("c"))));
  EXPECT_TRUE(allows(one_of({"false"}), Value(false)));
  EXPECT_FALSE(allows(one_of({"false"}), Value(true)));
  EXPECT_FALSE(allows(one_of({"1"}), Value(int64_t{2})));
  EXPECT_EQ(expectation(one_of({"a", "b"}), Value(std::string())), "one of \"a\", \"b\"");
  EXPECT_EQ(expectation(one_of({"1"}), Value(int64_t{1})), "1");
}

TEST(Constraint, TextHasNoControlCharactersAndListsNoEmptyEntries) {
  EXPECT_FALSE(allows({}, Value(std::string("a\0b", 3))));
  EXPECT_FALSE(allows({}, Value(std::string("a\nb"))));
  EXPECT_TRUE(allows({}, Value(std::string("\xC3\xA4"))));
  EXPECT_TRUE(allows({}, Value(std::string())));
  EXPECT_FALSE(allows(non_empty(), Value(std::string())));
  EXPECT_FALSE(allows({}, Value(Strings{"a", ""})));
  EXPECT_TRUE(allows({}, Value(Strings{})));
  EXPECT_FALSE(allows(non_empty(), Value(Strings{})));
}

TEST(Constraint, ListsHaveTheirLength) {
  Constraint two{.min = 0, .length = 2};
  EXPECT_TRUE(allows(two, Value(Floats{0, 1})));
  EXPECT_FALSE(allows(two, Value(Floats{0})));
  EXPECT_FALSE(allows(two, Value(Floats{0, 1, 2})));
  EXPECT_EQ(expectation(two, Value(Floats{})), "a list of 2 numbers >= 0");
}

}  // namespace
}  // namespace fsdp::config
