#include <gtest/gtest.h>
#include <unistd.h>

#include "launch/console.h"

namespace fsdp::launch {
namespace {

TEST(Terminal, HasNoWidthWhenItIsAPipe) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  EXPECT_EQ(terminal_columns(ends[1]), 0);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST(Terminal, CutsTextToTheWidth) {
  EXPECT_EQ(fit_columns("abc", 3), "abc");
  EXPECT_EQ(fit_columns("abcd", 3), "abc");
  EXPECT_EQ(fit_columns("abc", 0), "");
  EXPECT_EQ(fit_columns("abc", -5), "");
  EXPECT_EQ(fit_columns("a\tb\x07"
                        "c",
                        3),
            "abc");
}

TEST(Terminal, CountsCharactersNotBytes) {
  EXPECT_EQ(fit_columns("\xE2\x96\x88\xE2\x96\x88\xE2\x96\x88", 2), "\xE2\x96\x88\xE2\x96\x88");
}

TEST(Terminal, KeepsColoursAndEndsThemWhenItCuts) {
  EXPECT_EQ(fit_columns("\033[31mab\033[0m", 2), "\033[31mab\033[0m");
  EXPECT_EQ(fit_columns("\033[31mabc", 2), "\033[31mab\033[0m");
  EXPECT_EQ(fit_columns("ab\033[31", 5), "ab\033[31");  // torn sequence at the end
}

}  // namespace
}  // namespace fsdp::launch
