#include "util/name_patterns.h"

#include <gtest/gtest.h>

namespace fsdp::util {
namespace {

bool matches(const std::string& name, const std::string& pattern) { return matches_any(name, {pattern}); }

TEST(NamePatterns, MatchTheWholeName) {
  EXPECT_TRUE(matches("a.bias", "a.bias"));
  EXPECT_FALSE(matches("a.bias", "bias"));
  EXPECT_FALSE(matches("a.bias", "a.bia"));
  EXPECT_FALSE(matches("a.bia", "a.bias"));
  EXPECT_TRUE(matches("", ""));
  EXPECT_FALSE(matches("a", ""));
}

TEST(NamePatterns, StarStandsForAnyCharactersDotsToo) {
  EXPECT_TRUE(matches("model.layers.0.input_layernorm.weight", "*norm*"));
  EXPECT_TRUE(matches("model.layers.0.bias", "*.bias"));
  EXPECT_FALSE(matches("model.layers.0.bias2", "*.bias"));
  EXPECT_TRUE(matches("a", "*"));
  EXPECT_TRUE(matches("", "**"));
  EXPECT_TRUE(matches("ab", "a**b"));
  EXPECT_TRUE(matches("aXbXc", "a*b*c"));
  EXPECT_FALSE(matches("aXcXb", "a*b*c"));
  EXPECT_TRUE(matches("abcabd", "*abd"));
}

TEST(NamePatterns, QuestionMarkStandsForExactlyOne) {
  EXPECT_TRUE(matches("layers.7.w", "layers.?.w"));
  EXPECT_FALSE(matches("layers.17.w", "layers.?.w"));
  EXPECT_FALSE(matches("layers..w", "layers.?.w"));
  EXPECT_TRUE(matches("abc", "?*?"));
  EXPECT_FALSE(matches("a", "?*?"));
}

TEST(NamePatterns, OtherSignsStandForThemselves) {
  EXPECT_FALSE(matches("aXb", "a.b"));
  EXPECT_TRUE(matches("[a]+", "[a]+"));
}

TEST(NamePatterns, AnyOfSeveral) {
  EXPECT_TRUE(matches_any("x.bias", {"*norm*", "*bias"}));
  EXPECT_FALSE(matches_any("x.weight", {"*norm*", "*bias"}));
  EXPECT_FALSE(matches_any("x", {}));
}

TEST(NamePatterns, ManyStarsTakeNoExponentialTime) {
  std::string pattern;
  for (int i = 0; i < 50; ++i) pattern += "*a";
  EXPECT_FALSE(matches(std::string(5000, 'a') + "b", pattern));
}

}  // namespace
}  // namespace fsdp::util
