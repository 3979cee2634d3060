#include "checkpoint/run_lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "support/checkpoint_fixtures.h"

namespace fsdp::checkpoint {
namespace {

using namespace fsdp::testing;
using ::testing::AllOf;
using ::testing::HasSubstr;
using util::ErrorKind;

TEST(RunLock, IsHeldByOneAtATime) {
  TemporaryFolder root;
  {
    RunLock lock(root.path());
    auto [kind, text] = error_of([&] { RunLock second(root.path()); });
    EXPECT_EQ(kind, ErrorKind::kUsage);
    EXPECT_THAT(text, AllOf(HasSubstr(root.path().string()),
                            HasSubstr("process " + std::to_string(::getpid()) + " on ")));
  }
  RunLock again(root.path());
}

TEST(RunLock, IsGoneWithAKilledProcess) {
  TemporaryFolder root;
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  pid_t child = ::fork();
  if (child == 0) {
    RunLock lock(root.path());
    [[maybe_unused]] ssize_t told = ::write(ready[1], "x", 1);
    for (;;) ::pause();
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  auto [kind, text] = error_of([&] { RunLock second(root.path()); });
  EXPECT_EQ(kind, ErrorKind::kUsage);
  EXPECT_THAT(text, HasSubstr("process " + std::to_string(child)));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  RunLock lock(root.path());
  for (int fd : ready) ::close(fd);
}

TEST(RunLock, NoticesThatItsFolderIsNoLongerTheOneOfItsName) {
  TemporaryFolder root;
  std::filesystem::create_directory(root / "run");
  RunLock lock(root / "run");
  EXPECT_NO_THROW(lock.require_same_folder());
  std::filesystem::rename(root / "run", root / "away");
  auto [kind, text] = error_of([&] { lock.require_same_folder(); });
  EXPECT_EQ(kind, ErrorKind::kIo);
  EXPECT_THAT(text, AllOf(HasSubstr((root / "run").string()), HasSubstr("found none")));
  std::filesystem::create_directory(root / "run");
  {
    RunLock of_another_run(root / "run");
    EXPECT_THAT(error_of([&] { lock.require_same_folder(); }).second, HasSubstr("found another one"));
  }
  std::filesystem::remove_all(root / "run");
  std::filesystem::rename(root / "away", root / "run");
  EXPECT_NO_THROW(lock.require_same_folder());
}

TEST(RunLock, NeedsAFolderThatCanBeWritten) {
  TemporaryFolder root;
  auto [kind, text] = error_of([&] { RunLock lock(root / "absent"); });
  EXPECT_EQ(kind, ErrorKind::kIo);
}

}  // namespace
}  // namespace fsdp::checkpoint
