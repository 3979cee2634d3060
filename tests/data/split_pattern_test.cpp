#include "data/split_pattern.h"

#include "data/token_fixtures.h"
#include "data/vocabulary.h"

namespace fsdp::data {
namespace {
using util::ErrorKind;

std::vector<std::string> matches(const SplitPattern& pattern, std::string_view text) {
  SplitPattern::Scratch scratch;
  std::vector<std::string> found;
  SplitPattern::Match match;
  while (pattern.find(text, false, scratch, match) == SplitPattern::Found::kMatch) {
    found.emplace_back(text.substr(match.begin, match.end - match.begin));
    text.remove_prefix(match.end);
  }
  return found;
}

TEST(SplitPattern, SplitsAsGpt2Does) {
  SplitPattern pattern(kGpt2SplitPattern, false);
  EXPECT_EQ(matches(pattern, "It's  12 o'clock,\n\n  né"),
            (std::vector<std::string>{"It", "'s", " ", " 12", " o", "'", "clock", ",", "\n\n ", " né"}));
}

TEST(SplitPattern, WhiteSpaceIsUnicodes) {
  SplitPattern space("\\s", false), other("\\S", false), in_class("[^\\sx]", false);
  for (std::string c : {"\t", "\n", "\v", "\f", "\r", " ", "\u0085", "\u00a0", "\u1680", "\u2000", "\u200a",
                        "\u2028", "\u2029", "\u202f", "\u205f", "\u3000"}) {
    EXPECT_EQ(matches(space, c).size(), 1u);
    EXPECT_EQ(matches(other, c).size(), 0u);
    EXPECT_EQ(matches(in_class, c).size(), 0u);
  }
  for (std::string c : {"\u180e", "\u200b", "\ufeff", "\x1c", "\x1f", "a"}) {
    EXPECT_EQ(matches(space, c).size(), 0u);
    EXPECT_EQ(matches(other, c).size(), 1u);
    EXPECT_EQ(matches(in_class, c).size(), 1u);
  }
}

TEST(SplitPattern, IsUncertainWhereMoreTextCouldMatter) {
  SplitPattern pattern(kGpt2SplitPattern, false);
  SplitPattern::Scratch scratch;
  SplitPattern::Match match;
  EXPECT_EQ(pattern.find("word", true, scratch, match), SplitPattern::Found::kUncertain);
  EXPECT_EQ(pattern.find("word", false, scratch, match), SplitPattern::Found::kMatch);
  EXPECT_EQ(pattern.find("word,", true, scratch, match), SplitPattern::Found::kMatch);
  EXPECT_EQ(match.end, 4u);
  EXPECT_EQ(pattern.find("  ", true, scratch, match), SplitPattern::Found::kUncertain);
}

TEST(SplitPattern, ALiteralIsNoExpression) {
  SplitPattern pattern("a.b", true);
  EXPECT_EQ(matches(pattern, "axb a.b").size(), 1u);
}

TEST(SplitPattern, RefusesWhatOtherEnginesReadDifferently) {
  for (auto [pattern, part] : {std::pair<std::string, std::string>{"\\w+", "\\w"},
                               {"^a", "anchor ^"},
                               {"a$", "anchor $"},
                               {"(?<=a)b", "(?<="},
                               {"[a[b]]", "class within a class"},
                               {"[a&&b]", "&&"},
                               {"a{1,3}+", "}+"},
                               {"a{2}?", "}?"},
                               {"a{,2}", "{,"},
                               {"\\bword", "\\b"},
                               {"\\p{L", "\\p"},
                               {"\\", "backslash"},
                               {"[\\S]", "\\S"},
                               {"\\Qa\\E", "\\Q"},
                               {"(*UTF)a", "(*"},
                               {"(a", "cannot be used"},
                               {"a*", "empty text"},
                               {"\\p{Nonsense}", "cannot be used"},
                               {"\xff", "UTF-8"}}) {
    expect_error(ErrorKind::kData, {part}, [&] { SplitPattern(pattern, false); });
  }
}

TEST(SplitPattern, LongRunsDoNotExhaustTheStack) {
  SplitPattern pattern("(?:a|b)+c|[ab]+", false);
  std::string text(2'000'000, 'a');
  EXPECT_EQ(matches(pattern, text).size(), 1u);
}

}  // namespace
}  // namespace fsdp::data
