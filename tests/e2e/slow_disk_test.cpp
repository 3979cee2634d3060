// A disk that is slow for one rank, for longer than the others wait in a collective, is not taken for a lost
// peer.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "e2e/programs.h"
#include "support/tiny_config.h"

namespace fsdp::e2e {
namespace {

namespace fs = std::filesystem;
using testing::ProgramResult;

class SlowDisk : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::write_token_file(folder_ / "train.bin", 20 * 4 * 16 + 1, 17);
    std::ofstream(folder_ / "config.toml") << kOddModel;
  }

  /// Two ranks that wait two seconds for each other; rank 0 waits for three at each access to a path with
  /// `part` in it.
  ProgramResult run(const std::string& part, const std::vector<std::string>& overrides) const {
    std::vector<std::string> command{program("fsdp-launch"),
                                     "--nproc-per-node",
                                     "2",
                                     "--",
                                     program("fsdp-train"),
                                     (folder_ / "config.toml").string(),
                                     "run.output_dir=" + (folder_ / "out").string(),
                                     "data.train=[\"" + (folder_ / "train.bin").string() + "\"]",
                                     "comm.timeout_seconds=2",
                                     "training.steps=4",
                                     "checkpoint.interval_steps=2"};
    command.insert(command.end(), overrides.begin(), overrides.end());
    const std::string library = fs::path(program("libslow_disk.so"));
    return testing::run(command, {.env = {{"OMP_NUM_THREADS", "1"},
                                          {"LD_PRELOAD", library},
                                          {"FSDP_SLOW_RANK", "0"},
                                          {"FSDP_SLOW_SECONDS", "3"},
                                          {"FSDP_SLOW_PATH", part}},
                                  .timeout_seconds = 120});
  }

  testing::TemporaryFolder folder_;
};

TEST_F(SlowDisk, DeletesOldCheckpointsAndMarksTheBest) {
  for (const char* way : {"checkpoint.keep_best=true", "checkpoint.verify_saved=background"}) {
    fs::remove_all(folder_ / "out");
    const ProgramResult result =
        run("rank-00000.h5",
            {"data.validation=[\"" + (folder_ / "train.bin").string() + "\"]", "evaluation.interval_steps=2",
             "evaluation.max_samples=2", "checkpoint.keep_last=1", "optimizer.lr=1e-4", way});
    EXPECT_EQ(result.exit_code, 0) << way << result.err;
    EXPECT_NE(result.err.find("removed "), std::string::npos) << result.err;
  }
}

TEST_F(SlowDisk, DeletesWhatAStoppedRunHasLeft) {
  const fs::path left = folder_ / "out" / "step-00000009";
  fs::create_directories(left);
  std::ofstream(left / "rank-00000.h5") << "unfinished";
  for (const fs::path& id : {folder_ / "out" / ".run", left / ".unfinished"})
    std::ofstream(id) << "0123456789abcdef\n";
  const ProgramResult result =
      run("rank-00000.h5", {"checkpoint.interval_steps=0", "checkpoint.save_at_end=false"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.err.find("removed " + left.string()), std::string::npos) << result.err;
}

TEST_F(SlowDisk, WritesMetrics) {
  const ProgramResult result = run("metrics.jsonl", {});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(testing::values_of(folder_ / "out" / "metrics.jsonl", "loss").size(), 4u);
}

}  // namespace
}  // namespace fsdp::e2e
