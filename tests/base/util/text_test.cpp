#include "base/util/text.h"

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

TEST(Text, QuotesWordsForAShellWhereTheyNeedIt) {
  EXPECT_EQ(shell_word("run.output_dir=/tmp/a-b"), "run.output_dir=/tmp/a-b");
  EXPECT_EQ(shell_word("data.train=[\"a b\"]"), "'data.train=[\"a b\"]'");
  EXPECT_EQ(shell_word("it's"), "'it'\\''s'");
  EXPECT_EQ(shell_word(""), "''");
}

TEST(Text, ShowsNothingThatConfusesATerminal) {
  EXPECT_EQ(printable("a line\n\tand naïve 😀"), "a line\n\tand naïve 😀");
  EXPECT_EQ(printable("\x1b[2J\x7f\r"), "\\x1b[2J\\x7f\\x0d");
  EXPECT_EQ(printable("\xa0 \xc3"), "\\xa0 \\xc3") << "alone these are no UTF-8";
  EXPECT_EQ(printable("\xc2\x9b"), "\\xc2\\x9b") << "a control sequence in one character";
  EXPECT_EQ(printable("\xc0\x80 \xed\xa0\x80"), "\\xc0\\x80 \\xed\\xa0\\x80");
  EXPECT_EQ(printable(""), "");
}

TEST(Text, FindsTheNearestWord) {
  EXPECT_EQ(nearest("sequence_lenght", {"steps", "sequence_length"}), "sequence_length");
  EXPECT_EQ(nearest("banana", {"steps", "sequence_length"}), "");
}

TEST(Text, FindsTheNearestChoiceWhateverItsCase) {
  EXPECT_EQ(nearest_choice("adamW", {"adam", "adamw", "sgd"}), "adamw");
  EXPECT_EQ(nearest_choice("LLAMA3_8b", {"llama3-8b", "llama3-70b"}), "llama3-8b");
  EXPECT_EQ(nearest_choice("ab", {"abc"}), "");
}

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
  EXPECT_FALSE(matches(std::string(5000, 'a').append("b"), pattern));
}

TEST(Text, ThatTurnsTheDirectionIsEscaped) {
  EXPECT_EQ(printable("a\u202eb"), "a\\xe2\\x80\\xaeb");
  EXPECT_EQ(printable("a\u2067b\u2028"), "a\\xe2\\x81\\xa7b\\xe2\\x80\\xa8");
  EXPECT_EQ(printable("\u05d0\u2019"), "\u05d0\u2019");
}

}  // namespace
}  // namespace fsdp::util
