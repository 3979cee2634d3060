// Checkpoints under misfortune: processes killed at any moment, a disk without space, two runs in one folder.

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <random>

#include "e2e/programs.h"
#include "state/convert/inspect.h"
#include "state/manifest/folders.h"
#include "support/checkpoint_contents.h"
#include "support/tiny_config.h"

namespace fsdp::e2e {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Saving : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::write_token_file(folder_ / "train.bin", 5000, 17);
    std::ofstream(folder_ / "config.toml") << kOddModel;
  }

  std::vector<std::string> overrides(const std::vector<std::string>& more) const {
    std::vector<std::string> all = {"run.output_dir=" + (folder_ / "out").string(),
                                    "data.train=[\"" + (folder_ / "train.bin").string() + "\"]"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  std::vector<std::string> command(int world_size, const std::vector<std::string>& more) const {
    std::vector<std::string> words;
    if (world_size > 1) {
      words = {program("fsdp-launch"), "--nproc-per-node", std::to_string(world_size), "--"};
    }
    words.insert(words.end(), {program("fsdp-train"), (folder_ / "config.toml").string()});
    for (const std::string& word : overrides(more)) words.push_back(word);
    return words;
  }

  testing::TemporaryFolder folder_;
};

/// The names of the files below a folder that have other permissions.
std::string others_than(fs::perms expected, const fs::path& folder) {
  std::string others;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file() && entry.status().permissions() != expected) {
      others += entry.path().filename().string() + " ";
    }
  }
  return others;
}

TEST_F(Saving, GivesFilesThePermissionsOfTheConfigLessTheUmask) {
  using fs::perms;
  const auto train = [&](const std::string& umask, const std::vector<std::string>& more) {
    fs::remove_all(folder_ / "out");
    std::vector<std::string> words = {"sh", "-c", "umask " + umask + "; exec \"$@\"", "sh"};
    for (const std::string& word : command(1, {"training.steps=1"})) words.push_back(word);
    words.insert(words.end(), more.begin(), more.end());
    const auto result = testing::run(words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return fs::status(folder_ / "out" / "step-00000001").permissions();
  };
  constexpr perms kOwner = perms::owner_read | perms::owner_write;
  EXPECT_EQ(train("022", {}), perms::owner_all | perms::group_read | perms::group_exec);
  EXPECT_EQ(others_than(kOwner | perms::group_read, folder_ / "out"), "");
  EXPECT_EQ(train("077", {}), perms::owner_all);
  EXPECT_EQ(others_than(kOwner, folder_ / "out"), "");
  EXPECT_EQ(train("0", {"checkpoint.permissions=0664"}),
            perms::owner_all | perms::group_all | perms::others_read | perms::others_exec);
  EXPECT_EQ(
      others_than(kOwner | perms::group_read | perms::group_write | perms::others_read, folder_ / "out"), "");
}

TEST_F(Saving, EndsTheRunWhenItsFolderIsGone) {
  testing::RunningProgram run(command(2, {"training.steps=100000", "checkpoint.interval_steps=50"}));
  ASSERT_TRUE(run.wait_for("saved "));
  fs::rename(folder_ / "out", folder_ / "away");
  const auto result = run.wait();
  EXPECT_EQ(result.exit_code, 7) << result.err;
  EXPECT_THAT(result.err, HasSubstr("removed, replaced or unmounted"));
  EXPECT_FALSE(fs::exists(folder_ / "out"));
}

/// How often to kill; more than the suite has time for is asked for in the environment.
int number_of_kills() {
  const char* text = std::getenv("FSDP_TEST_KILLS");
  return text ? std::atoi(text) : 16;
}

class Kill : public Saving, public ::testing::WithParamInterface<const char*> {};

TEST_P(Kill, AtAnyMomentLeavesTheNewestCheckpointWholeAndIsCleanedUp) {
  const std::string how = GetParam();
  std::mt19937 random(how.size());
  int64_t last_step = 0;
  int torn_seen = 0, gone_on = 0;
  const int kills = std::max(1, number_of_kills() / 4);
  for (int i = 0; i < kills; ++i) {
    testing::RunningProgram run(
        command(how == "two_processes" ? 2 : 1,
                {"training.steps=1_000_000", "checkpoint.interval_steps=1", "checkpoint.keep_last=2",
                 how == "full" ? "checkpoint.kind=full" : "checkpoint.kind=sharded",
                 how == "asynchronous" ? "checkpoint.asynchronous=true" : "checkpoint.asynchronous=false"}),
        {.env = {{"OMP_NUM_THREADS", "1"}}, .timeout_seconds = 60});
    ASSERT_TRUE(run.wait_for("saved ")) << run.err();
    // Nothing of the run before is in the way of this one.
    for (const auto& torn : checkpoint::find_checkpoints(folder_ / "out").torn) {
      auto step = checkpoint::step_of_folder_name(torn.folder.filename().string());
      EXPECT_TRUE(step && *step > last_step) << torn.folder << ": " << torn.reason;
    }
    ::usleep(static_cast<useconds_t>(std::uniform_int_distribution<>(0, 120'000)(random)));
    run.send(SIGKILL);
    run.wait();
    // The launcher's workers are killed by the system with it, a moment later.
    ASSERT_TRUE(testing::eventually([&] {
      try {
        checkpoint::RunLock lock(folder_ / "out");
        return true;
      } catch (const util::Error&) {
        return false;
      }
    }));
    auto found = checkpoint::find_checkpoints(folder_ / "out");
    torn_seen += static_cast<int>(found.torn.size());
    ASSERT_FALSE(found.complete.empty());
    const auto& newest = found.complete.back();
    EXPECT_THAT(checkpoint::find_damage(newest.folder), IsEmpty());
    EXPECT_FALSE(testing::contents_of(newest.folder).empty());
    EXPECT_GT(newest.step, last_step);
    gone_on += last_step > 0 && run.err().find("resuming from") != std::string::npos;
    last_step = newest.step;
  }
  EXPECT_EQ(gone_on, kills - 1);
  std::cout << kills << " kills, " << torn_seen << " torn folders, step " << last_step << "\n";
}

INSTANTIATE_TEST_SUITE_P(All, Kill, ::testing::Values("sharded", "asynchronous", "full", "two_processes"),
                         [](const auto& info) { return std::string(info.param); });

/// The disk takes no file of more than so many KiB: as a full disk, but without one.
std::vector<std::string> with_small_files(int64_t kib, const std::vector<std::string>& command) {
  std::string line = "ulimit -f " + std::to_string(kib) + "; exec";
  for (const std::string& word : command) line += " '" + word + "'";
  return {"bash", "-c", line};
}

TEST_F(Saving, WithoutSpaceARunGoesOnToItsEndAndItsExitCodeTells) {
  auto first = testing::run(command(1, {"training.steps=2"}), {.env = {{"OMP_NUM_THREADS", "1"}}});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  fs::path older = folder_ / "out/step-00000002";
  auto before = testing::contents_of(older);
  for (const char* kind : {"kind=sharded", "kind=full", "asynchronous=true"}) {
    fs::remove_all(folder_ / "other");
    fs::copy(folder_ / "out", folder_ / "other", fs::copy_options::recursive);
    auto result = testing::run(
        with_small_files(64, command(2, {"training.steps=8", "checkpoint.interval_steps=2",
                                         "checkpoint.keep_last=1", std::string("checkpoint.") + kind,
                                         "run.output_dir=" + (folder_ / "other").string()})),
        {.env = {{"OMP_NUM_THREADS", "1"}}});
    EXPECT_EQ(result.exit_code, 7) << result.err;
    for (const char* step : {"4", "6", "8"}) {
      EXPECT_THAT(result.err,
                  HasSubstr(std::string("the checkpoint of step ") + step + " could not be saved"));
    }
    EXPECT_THAT(result.err,
                HasSubstr("File too large (the limit on the size of files, ulimit -f, is 65536 bytes)"));
    EXPECT_THAT(result.err,
                HasSubstr("the newest checkpoint is " + (folder_ / "other/step-00000002").string()));
    EXPECT_EQ(testing::values_of(folder_ / "other/metrics.jsonl", "loss").size(), 8u);
    auto found = checkpoint::find_checkpoints(folder_ / "other");
    ASSERT_EQ(found.complete.size(), 1u);
    EXPECT_THAT(found.torn, IsEmpty()) << "what a failed save wrote should be given back";
    EXPECT_THAT(checkpoint::find_damage(found.complete[0].folder), IsEmpty());
  }
}

TEST_F(Saving, ASecondRunInTheSameFolderIsRefused) {
  fs::create_directory(folder_ / "out");
  checkpoint::RunLock lock(folder_ / "out");
  auto result = launch_training(2, folder_ / "config.toml", overrides({}));
  EXPECT_EQ(result.exit_code, 2) << result.err;
  EXPECT_THAT(result.err, HasSubstr(" is in use by another run: "));
  EXPECT_THAT(result.err, HasSubstr("process " + std::to_string(::getpid())));
}

TEST_F(Saving, AFolderThatCannotBeWrittenIsRefusedBeforeTraining) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  fs::create_directory(folder_ / "out");
  fs::permissions(folder_ / "out", fs::perms::owner_read | fs::perms::owner_exec);
  auto result = launch_training(2, folder_ / "config.toml", overrides({}));
  EXPECT_EQ(result.exit_code, 7) << result.err;
  EXPECT_THAT(result.err, HasSubstr((folder_ / "out").string()));
}

TEST_F(Saving, ResumingSaysWhatItChoseAndWhatDiffers) {
  auto first = testing::run(command(1, {"training.steps=4", "checkpoint.interval_steps=2"}),
                            {.env = {{"OMP_NUM_THREADS", "1"}}});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  fs::remove(folder_ / "out/step-00000004/manifest.json");
  auto second = testing::run(command(1, {"training.steps=6", "optimizer.lr=2e-3"}),
                             {.env = {{"OMP_NUM_THREADS", "1"}}});
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_THAT(second.err, HasSubstr("resuming from " + (folder_ / "out/step-00000002").string()));
  EXPECT_THAT(second.err, HasSubstr("step-00000004 (it has no manifest.json, so it was never finished)"));
  EXPECT_THAT(second.err, HasSubstr("config differs from the run so far: optimizer.lr: 0.001 -> 0.002"));
  EXPECT_THAT(second.err,
              HasSubstr("renamed it to " + (folder_ / "out/step-00000004.incomplete-1").string()));
}

}  // namespace
}  // namespace fsdp::e2e
