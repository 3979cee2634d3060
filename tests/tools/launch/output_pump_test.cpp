#include "tools/launch/output_pump.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <string>
#include <vector>

#include "base/util/error.h"
#include "base/util/file.h"
#include "base/util/log.h"
#include "support/temporary_folder.h"

namespace fsdp::launch {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

struct Splitting {
  explicit Splitting(size_t longest_line_bytes = LineSplitter::kLongestLineBytes)
      : splitter(longest_line_bytes) {}
  void feed(std::string_view bytes) {
    splitter.feed(bytes, [this](std::string_view line) { lines.emplace_back(line); });
  }
  void finish() {
    splitter.finish([this](std::string_view line) { lines.emplace_back(line); });
  }
  LineSplitter splitter;
  std::vector<std::string> lines;
};

TEST(LineSplitter, JoinsALineThatComesInParts) {
  Splitting splitting;
  splitting.feed("one\ntw");
  EXPECT_THAT(splitting.lines, ElementsAre("one"));
  EXPECT_EQ(splitting.splitter.unfinished(), "tw");
  splitting.feed("o\n\nthree\n");
  EXPECT_THAT(splitting.lines, ElementsAre("one", "two", "", "three"));
}

TEST(LineSplitter, CompletesALastLineWithoutANewline) {
  Splitting splitting;
  splitting.feed("end");
  splitting.finish();
  EXPECT_THAT(splitting.lines, ElementsAre("end"));
  splitting.finish();
  EXPECT_THAT(splitting.lines, ElementsAre("end"));
}

TEST(LineSplitter, TakesCarriageReturnAndNewlineAsOneEnd) {
  Splitting splitting;
  splitting.feed("one\r\ntwo\r");
  EXPECT_TRUE(splitting.splitter.is_transient());
  splitting.feed("\n\r\n");
  EXPECT_THAT(splitting.lines, ElementsAre("one", "two", ""));
  EXPECT_FALSE(splitting.splitter.is_transient());
}

TEST(LineSplitter, ReplacesTransientText) {
  Splitting splitting;
  splitting.feed("10%\r");
  EXPECT_TRUE(splitting.splitter.is_transient());
  EXPECT_EQ(splitting.splitter.unfinished(), "10%");
  splitting.feed("20%\rdone");
  EXPECT_FALSE(splitting.splitter.is_transient());
  EXPECT_TRUE(splitting.splitter.replaces_transient());
  splitting.feed("\n30%\r");
  splitting.finish();
  EXPECT_THAT(splitting.lines, ElementsAre("done"));
}

TEST(LineSplitter, GivesAVeryLongLineInPieces) {
  Splitting splitting(10);
  splitting.feed(std::string(25, 'x'));
  EXPECT_THAT(splitting.lines, ElementsAre(std::string(10, 'x'), std::string(10, 'x')));
  EXPECT_EQ(splitting.splitter.unfinished().size(), 5u);
  splitting.feed("\n");
  EXPECT_EQ(splitting.lines.back(), std::string(5, 'x'));
}

TEST(LineSplitter, CutsBetweenCharacters) {
  Splitting splitting(4);
  splitting.feed("abc\xC3\xA9z\n");
  EXPECT_THAT(splitting.lines, ElementsAre("abc", "\xC3\xA9z"));
  Splitting bytes(4);  // continuation bytes only: no character to respect
  bytes.feed("\x80\x80\x80\x80\x80\n");
  EXPECT_THAT(bytes.lines, ElementsAre("\x80\x80\x80\x80", "\x80"));
}

TEST(LineSplitter, KeepsZeroBytes) {
  Splitting splitting;
  splitting.feed(std::string_view("a\0b\n", 4));
  EXPECT_THAT(splitting.lines, ElementsAre(std::string("a\0b", 3)));
}

TEST(RankLog, ContinuesAFileThatIsThere) {
  testing::TemporaryFolder folder;
  for (const char* text : {"first", "second"}) {
    RankLog log(folder.path() / "rank0.log");
    log.line(text);
    log.flush();
  }
  EXPECT_EQ(util::read_file(folder.path() / "rank0.log"), "first\nsecond\n");
}

TEST(RankLog, RefusesWhatIsNoFile) {
  testing::TemporaryFolder folder;
  ASSERT_EQ(::mkfifo((folder.path() / "pipe").c_str(), 0600), 0);
  EXPECT_THROW(RankLog(folder.path() / "pipe"), util::Error);
  EXPECT_THROW(RankLog(folder.path()), util::Error);
  EXPECT_THROW(RankLog(folder.path() / "missing" / "rank0.log"), util::Error);
}

}  // namespace
}  // namespace fsdp::launch
