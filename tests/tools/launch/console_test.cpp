#include "tools/launch/console.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "support/temporary_folder.h"
#include "tools/launch/signals.h"

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

/// A console on a pipe whose reading end is the test's.
class ConsoleOnAPipe : public ::testing::Test {
 protected:
  ConsoleOnAPipe() {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    reader_ = Descriptor(ends[0]);
    writer_ = Descriptor(ends[1]);
    ::fcntl(reader_.get(), F_SETFL, O_NONBLOCK);
  }
  std::string read() {
    std::string text;
    char buffer[1 << 16];
    ssize_t count;
    while ((count = ::read(reader_.get(), buffer, sizeof(buffer))) > 0) text.append(buffer, count);
    return text;
  }
  Descriptor reader_, writer_;
  const int first_ = 0, second_ = 0;  // their addresses tell writers apart
};

TEST_F(ConsoleOnAPipe, ContinuesABeginningOfTheSameWriter) {
  ConsoleStream stream(writer_.get());
  stream.beginning(&first_, "[a] ", "load");
  stream.flush();
  EXPECT_EQ(read(), "[a] load");
  stream.beginning(&first_, "[a] ", "loading");
  stream.line(&first_, "[a] ", "loading done");
  stream.line(&second_, "[b] ", "x");
  stream.flush();
  EXPECT_EQ(read(), "ing done\n[b] x\n");
}

TEST_F(ConsoleOnAPipe, RepeatsALineThatAnotherWriterBrokeOff) {
  ConsoleStream stream(writer_.get());
  stream.beginning(&first_, "[a] ", "load");
  stream.line(&second_, "[b] ", "x");
  EXPECT_FALSE(stream.is_continuing(&first_));
  stream.line(&first_, "[a] ", "loading");
  stream.flush();
  EXPECT_EQ(read(), "[a] load\n[b] x\n[a] loading\n");
}

TEST_F(ConsoleOnAPipe, CompletesAnAbandonedBeginning) {
  ConsoleStream stream(writer_.get());
  stream.beginning(&first_, "[a] ", "load");
  stream.abandon(&second_);
  stream.abandon(&first_);
  stream.line(&first_, "[a] ", "other");
  stream.beginning(&first_, "[a] ", "end");
  stream.settle();
  stream.settle();
  stream.flush();
  EXPECT_EQ(read(), "[a] load\n[a] other\n[a] end\n");
}

TEST_F(ConsoleOnAPipe, HidesTransientText) {
  ConsoleStream stream(writer_.get());
  EXPECT_FALSE(stream.is_terminal());
  stream.transient("[a] ", "10%");
  stream.settle();
  EXPECT_EQ(stream.pending_bytes(), 0u);
}

TEST_F(ConsoleOnAPipe, KeepsWhatASlowReaderDoesNotTake) {
  Console console(writer_.get(), writer_.get());
  EXPECT_EQ(&console.out(), &console.err());
  const std::string text(100000, 'x');
  std::string expected;
  for (int i = 0; i < 20; ++i) {
    console.out().line(nullptr, "", text);
    expected += text + "\n";
    console.flush();  // would block for ever if it waited
  }
  EXPECT_TRUE(console.has_pending());
  EXPECT_FALSE(console.out().takes_lines());
  std::vector<pollfd> entries;
  console.add_poll_entries(entries);
  EXPECT_EQ(entries.size(), 1u);
  EXPECT_EQ(::fcntl(writer_.get(), F_GETFL) & O_NONBLOCK, 0) << "others share this descriptor";

  std::string got;
  while (console.has_pending()) {
    got += read();
    console.flush();
  }
  got += read();
  EXPECT_TRUE(got == expected);
  EXPECT_TRUE(console.out().takes_lines());
}

TEST_F(ConsoleOnAPipe, DropsAndCountsLinesWhileTheReaderTakesNothing) {
  ConsoleStream stream(writer_.get());
  const int worker = 0;
  const std::string text(100000, 'x');
  while (stream.takes_lines()) {
    stream.line(&worker, "", text);
    stream.flush();
  }
  EXPECT_GT(stream.milliseconds_to_stall(), 1000);
  ::usleep(1000 * static_cast<useconds_t>(stream.milliseconds_to_stall() + 10));
  ASSERT_TRUE(stream.takes_lines()) << "it no longer waits for the reader";
  const size_t pending = stream.pending_bytes();
  for (int i = 0; i < 7; ++i) stream.line(&worker, "", text);
  EXPECT_EQ(stream.pending_bytes(), pending);
  stream.line(nullptr, "", "the launcher's own");
  std::string got;
  while (stream.pending_bytes() > 0) {
    got += read();
    stream.flush();
  }
  stream.line(&worker, "", "the next");
  stream.flush();
  got += read();
  EXPECT_NE(got.find("\nthe launcher's own\n"), std::string::npos);
  EXPECT_NE(got.find("\nwarning: 7 lines are missing here, because the launcher's output was not read"),
            std::string::npos);
  EXPECT_TRUE(got.ends_with("\nthe next\n"));
}

TEST_F(ConsoleOnAPipe, GoesOnWithoutAReader) {
  const SignalWatch no_sigpipe({SIGTERM});
  ConsoleStream stream(writer_.get());
  reader_.close();
  stream.line(nullptr, "", "lost");
  stream.flush();
  EXPECT_EQ(stream.failure(), EPIPE);
  stream.line(nullptr, "", "lost too");
  EXPECT_EQ(stream.pending_bytes(), 0u);
}

TEST(Console, KeepsTwoFilesApart) {
  testing::TemporaryFolder folder;
  Descriptor out(::open((folder.path() / "out").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  Descriptor err(::open((folder.path() / "err").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  Console console(out.get(), err.get());
  EXPECT_NE(&console.out(), &console.err());
}

}  // namespace
}  // namespace fsdp::launch
