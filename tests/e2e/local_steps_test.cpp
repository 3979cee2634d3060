// Local steps in processes: a run whose ranks are killed between exchanges and beside one, and restarted,
// ends with the weights of a run that nothing happened to; and a signal ends it when replicas meet.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/util/error.h"
#include "base/util/system.h"
#include "e2e/programs.h"
#include "state/manifest/folders.h"
#include "support/checkpoint_contents.h"
#include "support/tiny_config.h"

namespace fsdp::e2e {
namespace {

using ::testing::HasSubstr;
using testing::ProgramResult;

class LocalStepsOver : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    testing::write_token_file(folder_ / "train.bin", 40 * 4 * 16 + 1, 17);
    std::ofstream(folder_ / "config.toml") << kOddModel;
  }

  /// Four ranks: two replicas of two.
  ProgramResult run(const std::string& output, const std::string& fault,
                    const std::vector<std::string>& overrides) const {
    std::vector<std::string> words{program("fsdp-launch"),
                                   "--nproc-per-node",
                                   "4",
                                   "--shutdown-timeout",
                                   "4",
                                   "--max-restarts",
                                   "2",
                                   "--",
                                   program("fsdp-train"),
                                   (folder_ / "config.toml").string()};
    const std::vector<std::string> keys = {"run.output_dir=" + (folder_ / output).string(),
                                           "data.train=[\"" + (folder_ / "train.bin").string() + "\"]",
                                           "training.steps=14",
                                           "training.local_steps=4",
                                           "fsdp.strategy=hybrid_shard",
                                           "mesh.dcn=2",
                                           "checkpoint.interval_steps=5",
                                           "comm.timeout_seconds=5",
                                           "comm.backend=" + GetParam()};
    words.insert(words.end(), keys.begin(), keys.end());
    words.insert(words.end(), overrides.begin(), overrides.end());
    return testing::run(
        words, {.env = {{"OMP_NUM_THREADS", "1"}, {"FSDP_INJECT_FAULT", fault}}, .timeout_seconds = 120});
  }

  testing::TemporaryFolder folder_;
};

TEST_P(LocalStepsOver, AKilledRankChangesNothing) {
  const std::vector<std::string> streamed = {"outer_optimizer.fragments=2",
                                             "outer_optimizer.fragment_delay=1",
                                             "outer_optimizer.reduce_dtype=bfloat16"};
  for (const auto& overrides : {std::vector<std::string>(), streamed}) {
    const std::string suffix = overrides.empty() ? "" : "-streamed";
    const ProgramResult whole = run("whole" + suffix, "", overrides);
    ASSERT_EQ(whole.exit_code, 0) << whole.err;
    EXPECT_THAT(whole.err, HasSubstr("2 replicas take 4 steps each between two exchanges"));
    const ProgramResult killed = run("killed" + suffix, "rank=3,step=12,at=forward,do=kill", overrides);
    ASSERT_EQ(killed.exit_code, 0) << killed.err;
    EXPECT_THAT(killed.err, HasSubstr("ended by SIGKILL"));
    EXPECT_EQ(testing::values_of(folder_ / ("killed" + suffix) / "metrics.jsonl", "loss"),
              testing::values_of(folder_ / ("whole" + suffix) / "metrics.jsonl", "loss"));
    testing::expect_equal_checkpoints(folder_ / ("whole" + suffix) / "step-00000014",
                                      folder_ / ("killed" + suffix) / "step-00000014");
  }
}

TEST_P(LocalStepsOver, AReplicaThatDivergesEndsTheRunWithItsMessage) {
  const ProgramResult result = run("diverged", "", {"optimizer.lr=1e30"});
  EXPECT_EQ(result.exit_code, static_cast<int>(ErrorKind::kDiverged)) << result.err;
  EXPECT_THAT(result.err, HasSubstr("replica 0 of 2: training diverged at step"));
}

/// Three replicas of two ranks, of which one is lost between two exchanges and comes back.
TEST_P(LocalStepsOver, AReplicaThatIsLostAndReturnsCostsItsOwnSamplesOnly) {
  const auto launch = [&](const std::string& output, const std::string& fault) {
    std::vector<std::string> words{program("fsdp-launch"),
                                   "--nproc-per-node",
                                   "6",
                                   "--replica-size",
                                   "2",
                                   "--stop-timeout",
                                   "5",
                                   "--max-restarts",
                                   "2",
                                   "--",
                                   program("fsdp-train"),
                                   (folder_ / "config.toml").string()};
    for (const std::string& key :
         {"run.output_dir=" + (folder_ / output).string(),
          "data.train=[\"" + (folder_ / "train.bin").string() + "\"]",
          "data.validation=[\"" + (folder_ / "train.bin").string() + "\"]",
          std::string("evaluation.max_samples=48"), std::string("training.steps=42"),
          std::string("training.local_steps=4"), std::string("training.global_batch_size=12"),
          std::string("training.gradient_accumulation_steps=0"), std::string("data.micro_batch_size=1"),
          std::string("fsdp.strategy=hybrid_shard"), std::string("mesh.dcn=-1"), std::string("mesh.data=2"),
          std::string("checkpoint.interval_steps=20"), std::string("comm.timeout_seconds=10"),
          "comm.backend=" + GetParam()}) {
      words.push_back(key);
    }
    return testing::run(
        words, {.env = {{"OMP_NUM_THREADS", "1"}, {"FSDP_INJECT_FAULT", fault}}, .timeout_seconds = 180});
  };
  const ProgramResult whole = launch("whole", "");
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  const ProgramResult result = launch("lost", "rank=3,step=6,at=forward,do=kill");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("is lost"));
  EXPECT_THAT(result.err, HasSubstr("of 3 continue after step "));
  EXPECT_THAT(result.err, ::testing::Not(HasSubstr("from the newest checkpoint")));
  const auto of = [&](const char* output) {
    return testing::values_of(folder_ / output / "metrics.jsonl", "validation_loss").back();
  };
  EXPECT_LT(of("lost"), of("whole") * 1.02);
  EXPECT_TRUE(std::filesystem::exists(folder_ / "lost/step-00000042/manifest.json"));
}

INSTANTIATE_TEST_SUITE_P(Backends, LocalStepsOver, ::testing::Values("shm", "gloo"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace fsdp::e2e
