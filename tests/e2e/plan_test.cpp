// fsdp-plan and fsdp-train --plan say the same, to the byte.

#include <gtest/gtest.h>

#include "e2e/programs.h"
#include "support/source_folder.h"

namespace fsdp::e2e {
namespace {

using Words = std::vector<std::string>;

std::string config_path(const std::string& name) {
  return testing::source_folder() + "/configs/" + name + ".toml";
}

void expect_alike(const Words& arguments, const testing::RunOptions& options = {}) {
  Words planner = {program("fsdp-plan")}, trainer = {program("fsdp-train"), "--plan"};
  planner.insert(planner.end(), arguments.begin(), arguments.end());
  trainer.insert(trainer.end(), arguments.begin(), arguments.end());
  const testing::ProgramResult result = testing::run(planner, options);
  const testing::ProgramResult expected = testing::run(trainer, options);
  EXPECT_EQ(result.exit_code, expected.exit_code);
  EXPECT_EQ(result.out, expected.out);
  EXPECT_EQ(result.err, expected.err);
}

TEST(FsdpPlan, SaysWhatFsdpTrainSays) {
  for (const char* name : {"plan/175b", "quickstart"}) {
    SCOPED_TRACE(name);
    expect_alike({config_path(name)});
    expect_alike({config_path(name), "--json", "--gpu-memory-gib", "4"});
  }
  expect_alike({config_path("quickstart"), "--world-size", "24", "fsdp.layout=\"per_parameter\"",
                "model.tie_word_embeddings=true"});
}

TEST(FsdpPlan, RefusesWhatFsdpTrainRefuses) {
  const std::string config = config_path("quickstart");
  for (const Words& arguments :
       {Words{"none.toml"}, Words{config, "model.hidden_size=7"}, Words{config, "--world-size", "-3"},
        Words{config, "--flops-tflops", "0"}, Words{config, "mesh.data=3", "--world-size", "8"},
        Words{config, "fsdp.leaf_stages=[\"blok\"]"}}) {
    SCOPED_TRACE(arguments.back());
    expect_alike(arguments);
  }
}

TEST(FsdpPlan, RefusesAMistypedOptionAsFsdpTrainDoes) {
  const std::string config = config_path("quickstart");
  for (const Words& command : {Words{program("fsdp-plan")}, Words{program("fsdp-train"), "--plan"}}) {
    Words words = command;
    words.insert(words.end(), {config, "--jsno"});
    const testing::ProgramResult result = testing::run(words);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_NE(result.err.find("found --jsno; did you mean --json?"), std::string::npos) << result.err;
    EXPECT_EQ(testing::run(command).exit_code, 2);
  }
}

TEST(DryRun, PreparesItsDeviceAsARunDoes) {
  const auto dry_run = [](const std::string& precision) {
    return testing::run({program("fsdp-train"), config_path("quickstart"), "--dry-run", "training.device=cpu",
                         "training.matmul=\"mkl\"",
                         "training.float32_matmul_precision=\"" + precision + "\""});
  };
  const testing::ProgramResult high = dry_run("high");
  EXPECT_EQ(high.exit_code, 0) << high.err;
  EXPECT_NE(high.err.find("training.float32_matmul_precision = \"high\" has no effect on a CPU"),
            std::string::npos)
      << high.err;
  EXPECT_EQ(dry_run("highest").err.find("float32_matmul_precision"), std::string::npos);
}

}  // namespace
}  // namespace fsdp::e2e
