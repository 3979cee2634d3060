#include "base/util/progress_bar.h"

#include <gtest/gtest.h>

#include <chrono>
#include <sstream>
#include <thread>

namespace fsdp::util {
namespace {

TEST(ProgressBar, DrawsNothingOnAPipe) {
  std::ostringstream out;
  {
    ByteProgressBar bar({&out, 0});
    bar.show("writing", 50, 100);
  }
  EXPECT_EQ(out.str(), "");
}

TEST(ProgressBar, WritesLinesOnAPipeIfTheWorkIsLong) {
  std::ostringstream out;
  {
    ByteProgressBar bar({&out, 0}, std::chrono::milliseconds(20));
    bar.show("reading weights", 1 << 20, 4 << 20);
    EXPECT_EQ(out.str(), "");
    std::this_thread::sleep_for(std::chrono::milliseconds(25));
    bar.show("reading weights", 2 << 20, 4 << 20);
    bar.show("reading weights", 3 << 20, 4 << 20);
  }
  EXPECT_EQ(out.str(), "reading weights 2.0 MiB of 4.0 MiB\n");
}

TEST(ProgressBar, DrawsAndRemovesALineOnATerminal) {
  std::ostringstream out;
  {
    ByteProgressBar bar({&out, 80});
    bar.show("writing", 512, 1024);
    EXPECT_NE(out.str().find("writing [###############...............] 512 B of 1.0 KiB"), std::string::npos)
        << out.str();
    EXPECT_EQ(out.str().back(), '\r');
    EXPECT_EQ(out.str().find('\n'), std::string::npos);
  }
  EXPECT_TRUE(out.str().ends_with("\033[K"));
}

TEST(ProgressBar, NeverFillsTheWidthOfTheTerminal) {
  for (int columns : {1, 2, 5, 20, 40, 200}) {
    EXPECT_LT(bar_line("head ", 0.5, " tail", columns).size(), static_cast<size_t>(std::max(columns, 2)));
  }
  EXPECT_EQ(bar_line("a", 0.5, "b", 14), "a[####.....]b");
  EXPECT_EQ(bar_line("a", 7.0, "b", 14), "a[#########]b");
}

TEST(ProgressBar, ShowsANewPhaseAtOnceAndTheSameOneNotTooOften) {
  std::ostringstream out;
  ByteProgressBar bar({&out, 80});
  bar.show("verifying", 1, 1000);
  const size_t first = out.str().size();
  bar.show("verifying", 2, 1000);
  EXPECT_EQ(out.str().size(), first);
  bar.show("writing", 0, 1000);
  EXPECT_NE(out.str().find("writing"), std::string::npos);
}

TEST(ProgressBar, CountsBytes) {
  std::vector<int64_t> seen;
  ByteCounter counter([&](std::string_view, int64_t done, int64_t total) { seen = {done, total}; }, "x", 10);
  counter.add(3);
  counter.add(4);
  EXPECT_EQ(seen, (std::vector<int64_t>{7, 10}));
}

}  // namespace
}  // namespace fsdp::util
