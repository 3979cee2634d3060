#include "state/manifest/folders.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "state/manifest/manifest.h"
#include "state/manifest/run_identity.h"
#include "support/checkpoint_fixtures.h"

namespace fsdp::checkpoint {
namespace {

namespace fs = std::filesystem;
using namespace fsdp::testing;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(StepFolders, HaveOneNameAStep) {
  EXPECT_EQ(step_folder_name(100), "step-00000100");
  EXPECT_EQ(step_of_folder_name("step-00000100"), 100);
  EXPECT_EQ(step_of_folder_name(step_folder_name(123'456'789'012)), 123'456'789'012);
  for (const char* other :
       {"step-100", "step-", "step-0000010x", "step--0000001", "step-000000100", ".step-00000100",
        "step-00000100.damaged-1", "step-99999999999999999999", "epoch-00000100"}) {
    EXPECT_FALSE(step_of_folder_name(other)) << other;
  }
}

class Folders : public ::testing::Test {
 protected:
  static constexpr const char* kRun = "0123456789abcdef";

  fs::path save(int64_t step, const std::string& run = "") {
    return save_checkpoint(root_.path(), {{"model/w", at::ones({4})}}, 1, step, run);
  }
  fs::path tear(int64_t step) {
    fs::path folder = root_.path() / step_folder_name(step);
    fs::create_directory(folder);
    std::ofstream(folder / "rank-00000.h5") << "half";
    return folder;
  }
  std::vector<int64_t> complete_steps() {
    std::vector<int64_t> steps;
    for (const auto& found : find_checkpoints(root_.path()).complete) steps.push_back(found.step);
    return steps;
  }
  TemporaryFolder root_;
};

TEST_F(Folders, AreFoundByStepAndTornOnesWithTheReason) {
  save(20);
  save(3);
  tear(30);
  fs::path empty_manifest = tear(40);
  std::ofstream(empty_manifest / kManifestName);
  fs::create_directory(root_.path() / "unrelated");
  std::ofstream(root_.path() / "metrics.jsonl") << "{}";
  EXPECT_THAT(complete_steps(), ElementsAre(3, 20));
  auto torn = find_checkpoints(root_.path()).torn;
  ASSERT_EQ(torn.size(), 2u);
  EXPECT_THAT(torn[0].reason, HasSubstr("no manifest.json"));
  EXPECT_THAT(torn[1].reason, HasSubstr("not valid JSON"));
}

TEST_F(Folders, OfARunThatNeverStartedAreNone) {
  EXPECT_THAT(find_checkpoints(root_.path() / "absent").complete, IsEmpty());
}

TEST_F(Folders, PruneKeepsTheNewestAndTouchesNothingElse) {
  for (int64_t step : {1, 2, 3, 4}) save(step);
  fs::path torn = tear(9);
  EXPECT_THAT(prune(root_.path(), {.keep_last = 2}),
              ElementsAre(root_.path() / "step-00000001", root_.path() / "step-00000002"));
  EXPECT_THAT(complete_steps(), ElementsAre(3, 4));
  EXPECT_TRUE(fs::exists(torn));
  EXPECT_THAT(prune(root_.path(), {}), IsEmpty());
  EXPECT_THAT(complete_steps(), ElementsAre(3, 4));
}

TEST_F(Folders, PruneKeepsEachMultipleBesides) {
  for (int64_t step = 1; step <= 7; ++step) save(step);
  prune(root_.path(), {.keep_last = 1, .keep_every = 3});
  EXPECT_THAT(complete_steps(), ElementsAre(3, 6, 7));
  prune(root_.path(), {.keep_last = 0, .keep_every = 3});
  EXPECT_THAT(complete_steps(), ElementsAre(3, 6, 7));
}

TEST_F(Folders, LeftoversAreWhatTheRunDidNotFinish) {
  fs::path whole = save(1), damaged = save(2), torn = tear(3), hidden = root_ / ".deleting-step-00000001";
  mark_unfinished(torn, kRun);
  fs::create_directories(root_ / "step-00000004/ranks-00000");
  fs::remove(damaged / "rank-00000.h5");
  fs::create_directory(hidden);
  std::ofstream(root_ / "config.toml.tmp-123") << "half";
  std::ofstream(root_ / ".probe-123");
  for (const char* other : {"config.toml", "metrics.jsonl", "notes.tmp-old", ".lock"}) {
    std::ofstream(root_ / other) << "kept";
  }
  fs::create_directory(root_ / "step-00000002.damaged-1");
  const Leftovers found = remove_leftovers(root_.path(), kRun);
  EXPECT_THAT(found.removed,
              ::testing::UnorderedElementsAre(hidden, torn, root_ / "step-00000004",
                                              root_ / "config.toml.tmp-123", root_ / ".probe-123"));
  EXPECT_THAT(found.set_aside, IsEmpty());
  for (const char* kept : {"step-00000001", "step-00000002", "step-00000002.damaged-1", "config.toml",
                           "metrics.jsonl", "notes.tmp-old", ".lock"}) {
    EXPECT_TRUE(fs::exists(root_ / kept)) << kept;
  }
}

TEST_F(Folders, AStepThatMayHaveBeenCompleteIsSetAside) {
  const fs::path lost = save(1), older = tear(3), of_another = tear(4), of_nobody = tear(5);
  fs::remove(lost / kManifestName);
  mark_unfinished(older, kRun);
  mark_unfinished(of_another, "fedcba9876543210");
  mark_unfinished(of_nobody, "");
  const fs::path newest = save(6);
  fs::last_write_time(newest / kManifestName,
                      fs::last_write_time(older / kUnfinishedName) + std::chrono::seconds(9));
  const Leftovers found = remove_leftovers(root_.path(), kRun);
  EXPECT_THAT(found.removed, IsEmpty());
  EXPECT_THAT(found.set_aside,
              ElementsAre(root_ / "step-00000001.incomplete-1", root_ / "step-00000003.incomplete-1",
                          root_ / "step-00000004.incomplete-1", root_ / "step-00000005.incomplete-1"));
  EXPECT_TRUE(fs::exists(root_ / "step-00000001.incomplete-1/rank-00000.h5"));
  EXPECT_THAT(complete_steps(), ElementsAre(6));
}

TEST_F(Folders, AStepIsOfNoKnownRunWhereTheFolderRecordsNone) {
  const fs::path torn = tear(3);
  mark_unfinished(torn, "");
  EXPECT_THAT(remove_leftovers(root_.path(), "").set_aside,
              ElementsAre(root_ / "step-00000003.incomplete-1"));
}

TEST_F(Folders, PruneNeitherCountsNorRemovesCheckpointsOfOtherRuns) {
  for (int64_t step : {1, 2, 3}) save(step, kRun);
  for (int64_t step : {4, 5}) save(step, "fedcba9876543210");
  save(6);
  prune(root_.path(), {.keep_last = 2, .run = kRun});
  EXPECT_THAT(complete_steps(), ElementsAre(3, 4, 5, 6))
      << "step 6 records no run and counts as the run's own";
}

TEST_F(Folders, AnotherRunsCheckpointIsResumedByItsPathAlone) {
  record_run(root_.path(), kRun);
  save(1, kRun);
  const fs::path other = save(2, "fedcba9876543210");
  for (const char* resume : {"auto", "latest"}) {
    const auto [kind, text] = error_of([&] { resolve_resume(root_.path(), resume); });
    EXPECT_EQ(kind, ErrorKind::kCheckpoint);
    EXPECT_THAT(text, AllOf(HasSubstr(kRun), HasSubstr("fedcba9876543210"), HasSubstr(other.string()),
                            HasSubstr("checkpoint.resume")));
  }
  EXPECT_EQ(resolve_resume("elsewhere", other.string()).folder, other);
  const fs::path own = save(3, kRun);
  EXPECT_EQ(resolve_resume(root_.path(), "auto").folder, own)
      << "an older one of another run does not matter";
}

TEST_F(Folders, OfSeveralRunsNoneIsChosenWhereTheFolderRecordsNone) {
  save(1);
  save(2, kRun);
  EXPECT_TRUE(resolve_resume(root_.path(), "auto").folder);
  save(3, "fedcba9876543210");
  EXPECT_THAT(error_of([&] { resolve_resume(root_.path(), "auto"); }).second,
              HasSubstr("must be of one run"));
}

TEST_F(Folders, PruneFinishesARemovalThatWasInterrupted) {
  fs::path folder = save(1);
  fs::path hidden = root_.path() / ".deleting-step-00000001";
  fs::rename(folder, hidden);
  EXPECT_THAT(complete_steps(), IsEmpty());
  prune(root_.path(), {.keep_last = 3});
  EXPECT_FALSE(fs::exists(hidden));
}

TEST_F(Folders, AutoResumesFromTheNewestCompleteOneAndNamesTheTornOnes) {
  save(1);
  fs::path newest = save(2);
  fs::path torn = tear(3);
  for (const char* resume : {"auto", "latest"}) {
    ResumeChoice choice = resolve_resume(root_.path(), resume);
    EXPECT_EQ(choice.folder, newest);
    EXPECT_THAT(choice.message,
                AllOf(HasSubstr(newest.string()), HasSubstr(torn.string()), HasSubstr("never finished")));
  }
}

TEST_F(Folders, AutoStartsAnewWhereNothingIsComplete) {
  fs::path torn = tear(3);
  ResumeChoice choice = resolve_resume(root_.path(), "auto");
  EXPECT_FALSE(choice.folder);
  EXPECT_THAT(choice.message, AllOf(HasSubstr("starting from scratch"), HasSubstr(torn.string())));
  EXPECT_FALSE(resolve_resume(root_.path() / "absent", "auto").folder);
}

TEST_F(Folders, NeverStartsAnewWhateverIsThere) {
  save(1);
  EXPECT_FALSE(resolve_resume(root_.path(), "never").folder);
}

TEST_F(Folders, LatestDemandsACompleteOne) {
  tear(3);
  auto [kind, text] = error_of([&] { resolve_resume(root_.path(), "latest"); });
  EXPECT_EQ(kind, ErrorKind::kCheckpoint);
  EXPECT_THAT(text, AllOf(HasSubstr("latest"), HasSubstr(root_.path().string())));
}

TEST_F(Folders, APathNamesAStepOrARun) {
  fs::path older = save(1), newest = save(2);
  EXPECT_EQ(resolve_resume("elsewhere", older.string()).folder, older);
  EXPECT_EQ(resolve_resume("elsewhere", root_.path().string()).folder, newest);
}

TEST_F(Folders, APathWithoutACheckpointIsRefused) {
  fs::path torn = tear(3);
  std::ofstream(root_.path() / "file") << "x";
  for (const fs::path& path : {torn, root_.path() / "absent", root_.path() / "file"}) {
    auto [kind, text] = error_of([&] { resolve_resume("elsewhere", path.string()); });
    EXPECT_EQ(kind, ErrorKind::kCheckpoint);
    EXPECT_THAT(text, HasSubstr(path.string()));
  }
}

TEST_F(Folders, WhatCannotBeLookedAtIsNotTakenForMissing) {
  const fs::path loop = root_.path() / "loop";  // as good as a folder that one may not enter, for root too
  fs::create_symlink("loop", loop);
  auto [kind, text] = error_of([&] { checkpoint_folder(loop / "run"); });
  EXPECT_EQ(kind, ErrorKind::kIo);
  EXPECT_THAT(text, HasSubstr("cannot examine " + (loop / "run").string() + ": "));
}

/// Complete checkpoints of these steps in the folder.
void save_steps(const fs::path& root, const std::vector<int64_t>& steps) {
  for (int64_t step : steps) save_checkpoint(root, {{"model/w", at::ones({2})}}, 1, step);
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
  EXPECT_EQ(error_of([&] { mark_best(folder.path(), 1); }).first, ErrorKind::kIo);
  EXPECT_TRUE(fs::is_directory(folder / "best"));
}

TEST(Retention, KeepsOneStepBesides) {
  TemporaryFolder folder;
  save_steps(folder.path(), {1, 2, 3, 4});
  prune(folder.path(), {.keep_last = 1, .keep_steps = {2}});
  std::vector<int64_t> left;
  for (const auto& found : find_checkpoints(folder.path()).complete) left.push_back(found.step);
  EXPECT_EQ(left, (std::vector<int64_t>{2, 4}));
}

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
  EXPECT_THAT(text, AllOf(HasSubstr((root / "run").string()), HasSubstr("there is none of that name")));
  std::filesystem::create_directory(root / "run");
  {
    RunLock of_another_run(root / "run");
    EXPECT_THAT(error_of([&] { lock.require_same_folder(); }).second,
                HasSubstr("there is another one of that name"));
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

TEST(RunLock, FollowsNoLink) {
  TemporaryFolder root;
  const auto victim = root.write("victim", "precious");
  std::filesystem::create_directory(root / "run");
  std::filesystem::create_symlink(victim, root / "run" / kRunLockName);
  auto [kind, text] = error_of([&] { RunLock lock(root / "run"); });
  EXPECT_EQ(kind, ErrorKind::kIo);
  EXPECT_THAT(text, AllOf(HasSubstr(kRunLockName), HasSubstr("is a symbolic link; remove it")));
  EXPECT_EQ(root.read("victim"), "precious");
}

}  // namespace
}  // namespace fsdp::checkpoint
