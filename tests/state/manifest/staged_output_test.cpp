#include "state/manifest/staged_output.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <stdexcept>

#include "support/checkpoint_fixtures.h"

namespace fsdp::checkpoint {
namespace {

namespace fs = std::filesystem;
using namespace fsdp::testing;
using ::testing::HasSubstr;

class StagedOutput : public ::testing::Test {
 protected:
  fs::path target() const { return root_.path() / "out"; }
  fs::path partial() const { return root_.path() / ".out.partial"; }
  TemporaryFolder root_;
};

TEST_F(StagedOutput, AppearsOnlyWhenItIsCommitted) {
  {
    StagedFolder staged(target(), false);
    std::ofstream(staged.path() / "a") << "1";
    EXPECT_FALSE(fs::exists(target()));
    staged.commit();
    EXPECT_EQ(util::read_file(target() / "a"), "1");
  }
  EXPECT_TRUE(fs::exists(target() / "a"));
  EXPECT_FALSE(fs::exists(partial()));
}

TEST_F(StagedOutput, LeavesNothingWithoutACommit) {
  {
    StagedFolder staged(target(), false);
    std::ofstream(staged.path() / "a") << "1";
  }
  EXPECT_TRUE(fs::is_empty(root_.path()));
}

TEST_F(StagedOutput, ReplacesAnEmptyFolderAndNoOther) {
  fs::create_directory(target());
  StagedFolder(target(), false).commit();
  std::ofstream(target() / "precious") << "1";
  auto [kind, text] = error_of([&] { StagedFolder staged(target(), false); });
  EXPECT_EQ(kind, ErrorKind::kCheckpoint);
  EXPECT_THAT(text, HasSubstr("already exists"));
  fs::path file = root_.write("file", "1");
  EXPECT_EQ(error_of([&] { StagedFolder staged(file, true); }).first, ErrorKind::kCheckpoint);
}

TEST_F(StagedOutput, DoesNotReplaceWhatAppearedMeanwhile) {
  StagedFolder staged(target(), false);
  std::ofstream(staged.path() / "a") << "1";
  fs::create_directory(target());
  std::ofstream(target() / "precious") << "1";
  EXPECT_EQ(error_of([&] { staged.commit(); }).first, ErrorKind::kCheckpoint);
  EXPECT_EQ(util::read_file(target() / "precious"), "1");
}

TEST_F(StagedOutput, IsCleanedOfWhatAKilledRunLeft) {
  fs::create_directories(partial() / "deep");
  std::ofstream(partial() / "deep" / "half") << "1";
  StagedFolder staged(target(), false);
  EXPECT_TRUE(fs::is_empty(staged.path()));
}

TEST_F(StagedOutput, IsFilledByOneAtATime) {
  StagedFolder first(target(), false);
  auto [kind, text] = error_of([&] { StagedFolder second(target(), false); });
  EXPECT_EQ(kind, ErrorKind::kCheckpoint);
  EXPECT_THAT(text, HasSubstr("another process"));
  std::ofstream(first.path() / "a") << "1";
  first.commit();
  EXPECT_TRUE(fs::exists(target() / "a"));
}

/// A folder that is there, and what is to replace it.
class ReplacedFolder : public StagedOutput {
 protected:
  ReplacedFolder() {
    fs::create_directories(target() / "deep");
    std::ofstream(target() / "kept") << "1";
    std::ofstream(target() / "deep" / "kept") << "2";
    fs::create_symlink("kept", target() / "link");
    std::ofstream(target() / "a") << "old";
    std::ofstream(target() / "obsolete") << "old";
    fs::permissions(target(), fs::perms(0750));
  }

  static void fill(const StagedFolder& staged) {
    std::ofstream(staged.path() / "a") << "new";
    std::ofstream(staged.path() / "b") << "new";
  }
  static bool is_obsolete(const std::string& name) { return name == "a" || name == "obsolete"; }

  void expect_old() const {
    EXPECT_EQ(util::read_file(target() / "a"), "old");
    EXPECT_EQ(util::read_file(target() / "obsolete"), "old");
    EXPECT_FALSE(fs::is_regular_file(target() / "b"));
    expect_kept();
  }
  void expect_new() const {
    EXPECT_EQ(util::read_file(target() / "a"), "new");
    EXPECT_EQ(util::read_file(target() / "b"), "new");
    EXPECT_FALSE(fs::exists(target() / "obsolete"));
    expect_kept();
  }
  void expect_kept() const {
    EXPECT_EQ(util::read_file(target() / "kept"), "1");
    EXPECT_EQ(util::read_file(target() / "deep" / "kept"), "2");
    EXPECT_EQ(fs::read_symlink(target() / "link"), "kept");
    EXPECT_EQ(fs::status(target()).permissions(), fs::perms(0750));
  }
  void expect_nothing_beside() const {
    for (const auto& entry : fs::directory_iterator(root_.path())) EXPECT_EQ(entry.path(), target());
  }
  fs::path replaced() const { return root_.path() / ".out.replaced"; }
};

TEST_F(ReplacedFolder, KeepsFilesByLinksAndCopiesNone) {
  std::error_code unsupported;
  fs::create_hard_link(target() / "kept", root_.path() / "trial", unsupported);
  if (unsupported) GTEST_SKIP() << "the file system of " << root_.path() << " has no hard links";
  fs::remove(root_.path() / "trial");
  const auto inode = [this](const char* name) {
    struct stat status {};
    EXPECT_EQ(::stat((target() / name).c_str(), &status), 0) << name;
    return status.st_ino;
  };
  const auto kept = inode("kept"), deep = inode("deep/kept");
  StagedFolder staged(target(), true);
  staged.commit(is_obsolete);
  EXPECT_EQ(inode("kept"), kept);
  EXPECT_EQ(inode("deep/kept"), deep);
}

TEST_F(ReplacedFolder, KeepsWhatIsNotReplaced) {
  {
    StagedFolder staged(target(), true);
    fill(staged);
    expect_old();
    staged.commit(is_obsolete);
    expect_new();
  }
  expect_new();
  expect_nothing_beside();
}

TEST_F(ReplacedFolder, IsWholeWhereTheCommitIsInterrupted) {
  {
    StagedFolder staged(target(), true);
    fill(staged);
    EXPECT_THROW(staged.commit([](const std::string&) -> bool { throw std::runtime_error("killed"); }),
                 std::runtime_error);
    expect_old();
  }
  expect_old();
  expect_nothing_beside();
}

TEST_F(ReplacedFolder, IsWholeWhereAFolderIsInTheWayOfAFile) {
  fs::create_directory(target() / "b");
  {
    StagedFolder staged(target(), true);
    fill(staged);
    auto [kind, text] = error_of([&] { staged.commit(is_obsolete); });
    EXPECT_EQ(kind, ErrorKind::kCheckpoint);
    EXPECT_THAT(text, HasSubstr((target() / "b").string()));
  }
  expect_old();
  expect_nothing_beside();
}

TEST_F(ReplacedFolder, MayBeBehindALink) {
  const fs::path link = root_.path() / "link";
  fs::create_directory_symlink("out", link);
  StagedFolder staged(link, true);
  fill(staged);
  staged.commit(is_obsolete);
  EXPECT_TRUE(fs::is_symlink(link));
  expect_new();
}

TEST_F(ReplacedFolder, IsLockedWhileItGoes) {
  const int fd = ::open(target().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ASSERT_EQ(::flock(fd, LOCK_EX | LOCK_NB), 0);
  {
    StagedFolder staged(target(), true);
    fill(staged);
    EXPECT_EQ(error_of([&] { staged.commit(is_obsolete); }).first, ErrorKind::kIo);
  }
  ::close(fd);
  expect_old();
}

TEST_F(ReplacedFolder, GivesWayByTwoRenamesWhereNamesCannotBeExchanged) {
  const fs::path by = root_.path() / "by";
  fs::create_directory(by);
  std::ofstream(by / "a") << "new";
  replace_by_renaming(target(), by, replaced());
  EXPECT_EQ(util::read_file(target() / "a"), "new");
  EXPECT_EQ(util::read_file(replaced() / "a"), "old");
  fs::remove_all(replaced());
  EXPECT_EQ(error_of([&] { replace_by_renaming(target(), by, replaced()); }).first, ErrorKind::kIo);
  EXPECT_EQ(util::read_file(target() / "a"), "new") << "has its name again";
}

TEST_F(ReplacedFolder, HasItsNameAgainAfterAKillBetweenTheRenames) {
  fs::rename(target(), replaced());
  fs::create_directory(partial());
  {
    StagedFolder staged(target(), true);
    expect_old();
    fill(staged);
    staged.commit(is_obsolete);
  }
  expect_new();
  fs::create_directory(replaced());
  std::ofstream(replaced() / "a") << "old";
  StagedFolder(target(), true).commit();
  expect_new();
  expect_nothing_beside();
  fs::rename(target(), replaced());
  EXPECT_EQ(error_of([&] { StagedFolder staged(target(), false); }).first, ErrorKind::kCheckpoint);
  expect_new();
  expect_nothing_beside();
}

TEST_F(StagedOutput, FollowsNoLinkThatLiesUnderItsTemporaryName) {
  fs::path elsewhere = root_.path() / "elsewhere";
  fs::create_directory(elsewhere);
  std::ofstream(elsewhere / "precious") << "1";
  fs::create_directory_symlink(elsewhere, partial());
  EXPECT_EQ(error_of([&] { StagedFolder staged(target(), false); }).first, ErrorKind::kIo);
  EXPECT_TRUE(fs::exists(elsewhere / "precious"));
}

}  // namespace
}  // namespace fsdp::checkpoint
