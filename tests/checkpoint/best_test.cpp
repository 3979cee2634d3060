#include "checkpoint/best.h"

#include <gtest/gtest.h>

#include "checkpoint/folders.h"
#include "support/checkpoint_fixtures.h"

namespace fsdp::checkpoint {
namespace {

using testing::error_of;
using testing::TemporaryFolder;
namespace fs = std::filesystem;

/// Complete checkpoints of these steps in the folder.
void save_steps(const fs::path& root, const std::vector<int64_t>& steps) {
  for (int64_t step : steps) testing::save_checkpoint(root, {{"model/w", at::ones({2})}}, 1, step);
}

TEST(Best, IsALinkToACheckpointThatMoves) {
  TemporaryFolder folder;
  save_steps(folder.path(), {1, 2});
  EXPECT_EQ(best_step(folder.path()), std::nullopt);
  mark_best(folder.path(), 1);
  EXPECT_EQ(best_step(folder.path()), 1);
  mark_best(folder.path(), 2);
  EXPECT_EQ(best_step(folder.path()), 2);
  EXPECT_EQ(incompleteness(folder / "best"), "");
  EXPECT_EQ(find_checkpoints(folder.path()).complete.size(), 2u);
}

TEST(Best, IsNothingWhereTheLinkLeadsAstray) {
  TemporaryFolder folder;
  for (const char* target : {"step-00000007", "elsewhere", "../step-00000001"}) {
    fs::remove(folder / "best");
    fs::create_directory_symlink(target, folder / "best");
    EXPECT_EQ(best_step(folder.path()), std::nullopt) << target;
  }
}

TEST(Best, RefusesToReplaceWhatIsNoLink) {
  TemporaryFolder folder;
  save_steps(folder.path(), {1});
  fs::create_directory(folder / "best");
  EXPECT_EQ(error_of([&] { mark_best(folder.path(), 1); }).first, util::ErrorKind::kIo);
  EXPECT_TRUE(fs::is_directory(folder / "best"));
}

TEST(Retention, KeepsOneStepBesides) {
  TemporaryFolder folder;
  save_steps(folder.path(), {1, 2, 3, 4});
  prune(folder.path(), {.keep_last = 1, .keep_step = 2});
  std::vector<int64_t> left;
  for (const auto& found : find_checkpoints(folder.path()).complete) left.push_back(found.step);
  EXPECT_EQ(left, (std::vector<int64_t>{2, 4}));
}

}  // namespace
}  // namespace fsdp::checkpoint
