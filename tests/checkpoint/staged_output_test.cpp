#include "checkpoint/staged_output.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/checkpoint_fixtures.h"

namespace fsdp::checkpoint {
namespace {

namespace fs = std::filesystem;
using namespace fsdp::testing;
using ::testing::HasSubstr;
using util::ErrorKind;

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
    staged.commit("a");
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
  StagedFolder(target(), false).commit("");
  std::ofstream(target() / "precious") << "1";
  auto [kind, text] = error_of([&] { StagedFolder staged(target(), false); });
  EXPECT_EQ(kind, ErrorKind::kCheckpoint);
  EXPECT_THAT(text, HasSubstr("is there already"));
  fs::path file = root_.write("file", "1");
  EXPECT_EQ(error_of([&] { StagedFolder staged(file, true); }).first, ErrorKind::kCheckpoint);
}

TEST_F(StagedOutput, DoesNotReplaceWhatAppearedMeanwhile) {
  StagedFolder staged(target(), false);
  std::ofstream(staged.path() / "a") << "1";
  fs::create_directory(target());
  std::ofstream(target() / "precious") << "1";
  EXPECT_EQ(error_of([&] { staged.commit("a"); }).first, ErrorKind::kCheckpoint);
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
  first.commit("a");
  EXPECT_TRUE(fs::exists(target() / "a"));
}

TEST_F(StagedOutput, AddsToAFolderWhenAllowed) {
  fs::create_directory(target());
  std::ofstream(target() / "kept") << "1";
  std::ofstream(target() / "a") << "old";
  StagedFolder staged(target(), true);
  std::ofstream(staged.path() / "a") << "new";
  std::ofstream(staged.path() / "b") << "new";
  bool called = false;
  staged.commit("b", [&](const fs::path& folder) {
    EXPECT_EQ(util::read_file(folder / "a"), "old");
    called = true;
  });
  EXPECT_TRUE(called);
  EXPECT_EQ(util::read_file(target() / "a"), "new");
  EXPECT_EQ(util::read_file(target() / "b"), "new");
  EXPECT_EQ(util::read_file(target() / "kept"), "1");
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
