// Quantized collectives as runs of the real programs: losses near those of exact ones, and the same bits
// after a kill.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "e2e/programs.h"
#include "support/tiny_config.h"

namespace fsdp::e2e {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing::ProgramResult;
using Overrides = std::vector<std::string>;

class QuantizedLinks : public ::testing::Test {
 protected:
  QuantizedLinks() {
    testing::write_token_file(folder_ / "train.bin", 20 * 4 * 16 + 1, 17);
    std::ofstream(folder_ / "config.toml") << kOddModel;
  }

  ProgramResult train(const std::string& output, int processes, const Overrides& overrides,
                      const std::string& fault = "", const std::string& restarts = "0") const {
    std::vector<std::string> command{program("fsdp-launch"),
                                     "--nproc-per-node",
                                     std::to_string(processes),
                                     "--max-restarts",
                                     restarts,
                                     "--shutdown-timeout",
                                     "4",
                                     "--",
                                     program("fsdp-train"),
                                     (folder_ / "config.toml").string(),
                                     "run.output_dir=" + (folder_ / output).string(),
                                     "data.train=[\"" + (folder_ / "train.bin").string() + "\"]",
                                     "training.steps=12",
                                     "checkpoint.interval_steps=4"};
    command.insert(command.end(), overrides.begin(), overrides.end());
    return testing::run(
        command, {.env = {{"OMP_NUM_THREADS", "1"}, {"FSDP_INJECT_FAULT", fault}}, .timeout_seconds = 120});
  }

  std::vector<double> losses(const std::string& output) const {
    return testing::values_of(folder_ / output / "metrics.jsonl", "loss");
  }

  /// fsdp-ckpt diff of the last checkpoints.
  ProgramResult difference(const std::string& a, const std::string& b) const {
    return testing::run({program("fsdp-ckpt"), "diff", (folder_ / a / "step-00000012").string(),
                         (folder_ / b / "step-00000012").string()});
  }

  testing::TemporaryFolder folder_;
  const Overrides everywhere_{"fsdp.gather_dtype=int8", "fsdp.reduce_dtype=int8", "fsdp.quantize_links=all"};
  const Overrides feedback_{"fsdp.gather_dtype=int8", "fsdp.reduce_dtype=int4", "fsdp.quantize_links=all",
                            "fsdp.error_feedback=true"};
};

TEST_F(QuantizedLinks, TrainNearlyAsExactOnes) {
  ASSERT_EQ(train("exact", 2, {}).exit_code, 0);
  for (const auto& [name, overrides] : {std::pair("int8", everywhere_), std::pair("int4", feedback_)}) {
    const ProgramResult result = train(name, 2, overrides);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.err, HasSubstr("quantized collectives: parameters of"));
    const auto found = losses(name), expected = losses("exact");
    ASSERT_EQ(found.size(), 12u);
    EXPECT_NE(found, expected);
    for (size_t i = 0; i < 12; ++i)
      EXPECT_NEAR(found[i], expected[i], 0.01 * expected[i]) << name << " " << i;
  }
}

TEST_F(QuantizedLinks, AreExactOnOneHostByDefault) {
  ASSERT_EQ(train("exact", 2, {}).exit_code, 0);
  const ProgramResult result = train("out", 2, {"fsdp.gather_dtype=int8", "fsdp.reduce_dtype=int8"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("have no effect: the processes that exchange"));
  EXPECT_EQ(losses("out"), losses("exact"));
}

TEST_F(QuantizedLinks, RepeatTheSameBitsAfterAKill) {
  for (const auto& [name, overrides] : {std::pair("int8", everywhere_), std::pair("int4", feedback_)}) {
    SCOPED_TRACE(name);
    for (const char* save : {"false", "true"}) {
      Overrides own = overrides;
      own.push_back(concat("checkpoint.asynchronous=", save));
      std::filesystem::remove_all(folder_ / "out");
      std::filesystem::remove_all(folder_ / "undisturbed");
      ASSERT_EQ(train("undisturbed", 2, own).exit_code, 0);
      const ProgramResult result = train("out", 2, own, "rank=1,step=11,at=forward,do=kill", "1");
      EXPECT_EQ(result.exit_code, 0) << result.err;
      EXPECT_THAT(result.err, HasSubstr("step-00000008"));
      EXPECT_EQ(losses("out"), losses("undisturbed"));
      const ProgramResult compared = difference("out", "undisturbed");
      EXPECT_EQ(compared.exit_code, 0) << compared.out;
    }
  }
}

TEST_F(QuantizedLinks, BeginWithoutErrorsOnOtherProcesses) {
  ASSERT_EQ(train("out", 2, feedback_).exit_code, 0);
  Overrides more = feedback_;
  more.insert(more.end(), {"training.steps=16", "data.micro_batch_size=1"});
  const ProgramResult wider = train("out", 4, more);
  EXPECT_EQ(wider.exit_code, 0) << wider.err;
  EXPECT_THAT(wider.err, HasSubstr("the errors of quantized gradients begin at zero"));
  const ProgramResult exact = train("out", 2, {"training.steps=20"});
  EXPECT_EQ(exact.exit_code, 0) << exact.err;
  EXPECT_THAT(exact.err, HasSubstr("are ignored, because fsdp.error_feedback is false"));
}

}  // namespace
}  // namespace fsdp::e2e
