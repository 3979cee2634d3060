#include "data/tokenizers/split_pattern.h"

#include "data/token_fixtures.h"
#include "data/tokenizers/vocabulary.h"

namespace fsdp::data {
namespace {

std::vector<std::string> matches(const SplitPattern& pattern, std::string_view text) {
  SplitPattern::SplitScratch scratch;
  std::vector<std::string> found;
  SplitPattern::Match match;
  while (pattern.find(text, false, scratch, match) == SplitPattern::MatchOutcome::kMatch) {
    found.emplace_back(text.substr(match.begin, match.end - match.begin));
    text.remove_prefix(match.end);
  }
  return found;
}

/// Searches to the end of a text.
int count_matches(const SplitPattern& pattern, std::string_view text) {
  SplitPattern::SplitScratch scratch;
  scratch.begin_text(text);
  SplitPattern::Match match;
  int count = 0;
  while (!text.empty() && pattern.find(text, false, scratch, match) == SplitPattern::MatchOutcome::kMatch) {
    text.remove_prefix(match.end);
    ++count;
  }
  return count;
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

TEST(SplitPattern, KnowsTheCharactersOfNewerVersionsOfUnicode) {
  const std::string wireless = "\U0001f6dc", letter = "\u1c89", han = "\U00031350", digit = "\U00011f50",
                    mark = "\u0897";
  for (const auto& [pattern, character] : {std::pair<std::string, std::string>{"\\p{S}", wireless},
                                           {"\\p{So}", wireless},
                                           {"[a\\p{S}]", wireless},
                                           {"\\p{L}", letter},
                                           {"\\p{Lu}", letter},
                                           {"\\p{Lo}", han},
                                           {"\\p{Han}", han},
                                           {"\\p{N}", digit},
                                           {"\\d", digit},
                                           {"[\\d]", digit},
                                           {"\\p{M}", mark},
                                           {"\\P{L}", digit},
                                           {"\\p{^Han}", letter}}) {
    EXPECT_EQ(matches(SplitPattern(pattern, false), character).size(), 1u) << pattern;
  }
  for (const auto& [pattern, character] : {std::pair<std::string, std::string>{"\\P{S}", wireless},
                                           {"[^\\p{S}]", wireless},
                                           {"\\p{L}", wireless},
                                           {"\\D", digit},
                                           {"\\P{L}", letter},
                                           {"\\p{Ll}", letter},
                                           {"\\p{^L}", han}}) {
    EXPECT_EQ(matches(SplitPattern(pattern, false), character).size(), 0u) << pattern;
  }
}

TEST(SplitPattern, KnowsThemWhereverTheyAreInAText) {
  const SplitPattern pattern("\\p{L}+|\\p{S}+", false);
  for (const auto& [text, count] : {std::pair<std::string, int>{"ab \u1c89\u1c8aa \U0001f6dc\U0001f600", 3},
                                    {"\U00031350", 1},
                                    {"\u65e5\u672c", 1},
                                    {"\U0001f6dd!\U0001f6dc", 2},
                                    {"\xc3\xa9\u0897", 1}}) {
    EXPECT_EQ(count_matches(pattern, text), count) << text;
  }
}

TEST(SplitPattern, AnchorsAtLineEndsAsOnigurumaDoes) {
  EXPECT_EQ(matches(SplitPattern("x$", false), "x\nxx x").size(), 2u);
  EXPECT_EQ(matches(SplitPattern("\\s+$", false), "a  \nb  c \t"), (std::vector<std::string>{"  ", " \t"}));
}

TEST(SplitPattern, FindsMatchesOfAnyLengthAnywhere) {
  const SplitPattern pattern("\\p{L}+|x(?=[0-9]+z)", false);
  const std::string words(5'000'000, 'a'), blanks(3'000'000, ' ');
  EXPECT_EQ(matches(pattern, blanks + words + blanks + "\u00e9" + blanks).size(), 2u);
  const SplitPattern literal("needle", true);
  EXPECT_EQ(matches(literal, blanks + "needle" + blanks + "needle").size(), 2u);
  SplitPattern::SplitScratch scratch;
  scratch.begin_text(blanks + words);
  SplitPattern::Match match;
  EXPECT_EQ(pattern.find(blanks + words, true, scratch, match), SplitPattern::MatchOutcome::kUncertain);
  EXPECT_EQ(pattern.find(blanks + words + " ", true, scratch, match), SplitPattern::MatchOutcome::kMatch);
  EXPECT_EQ(match.end - match.begin, words.size());
}

// Without a sum of steps, each of a million places could take ten million.
TEST(SplitPattern, RefusesTextsThatTakeTooManySteps) {
  std::string text;
  while (text.size() < 1 << 20) text += std::string(30, 'a') + "c";
  text += "b";
  for (const char* expression : {"(?:a+)+b", "(?:a|a?)+b", "a*a*a*a*a*a*b"}) {
    const SplitPattern pattern(expression, false);
    expect_error(ErrorKind::kData, {"too many steps on a text of"}, [&] { count_matches(pattern, text); });
  }
  const SplitPattern ahead("a(?=[ac]*d)|[ac]", false);
  expect_error(ErrorKind::kData, {"too many steps on a text of"}, [&] { count_matches(ahead, text); });
}

TEST(SplitPattern, GoesBackOverLongRuns) {
  // As o200k_base does over the letters of a genome.
  const SplitPattern pattern("[\\p{Lu}]*[\\p{Ll}]+|[\\p{Lu}]+|\\s", false);
  EXPECT_EQ(count_matches(pattern, std::string(1'000'000, 'G') + " " + std::string(1'000'000, 'A')), 3);
}

TEST(SplitPattern, IsUncertainWhereMoreTextCouldMatter) {
  SplitPattern pattern(kGpt2SplitPattern, false);
  SplitPattern::SplitScratch scratch;
  SplitPattern::Match match;
  EXPECT_EQ(pattern.find("word", true, scratch, match), SplitPattern::MatchOutcome::kUncertain);
  EXPECT_EQ(pattern.find("word", false, scratch, match), SplitPattern::MatchOutcome::kMatch);
  EXPECT_EQ(pattern.find("word,", true, scratch, match), SplitPattern::MatchOutcome::kMatch);
  EXPECT_EQ(match.end, 4u);
  EXPECT_EQ(pattern.find("  ", true, scratch, match), SplitPattern::MatchOutcome::kUncertain);
}

TEST(SplitPattern, ALiteralIsNoExpression) {
  SplitPattern pattern("a.b", true);
  EXPECT_EQ(matches(pattern, "axb a.b").size(), 1u);
}

TEST(SplitPattern, RefusesWhatOtherEnginesReadDifferently) {
  for (auto [pattern, part] : {std::pair<std::string, std::string>{"\\w+", "\\w"},
                               {"^a", "anchor ^"},
                               {"[\\P{L}]", "complement of L"},
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
