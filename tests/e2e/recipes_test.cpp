// Recipes of configs/ with published figures, a few steps of each on little data.

#include <gtest/gtest.h>

#include "e2e/programs.h"
#include "support/source_folder.h"

namespace fsdp::e2e {
namespace {

// configs/shakespeare_char.toml by the commands in its comment, but for 30 steps.
TEST(Recipes, TrainCharactersOfAText) {
  const testing::TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 400; ++i) text += "First Citizen:\nBefore we proceed any further, hear me speak.\n\n";
  folder.write("text.txt", text);
  const testing::RunOptions options{
      .env = {{"OMP_NUM_THREADS", "1"}}, .working_folder = folder.path(), .timeout_seconds = 120};
  const auto run = [&](const std::vector<std::string>& command) { return testing::run(command, options); };
  auto result = run({program("fsdp-data"), "train-tokenizer", "text.txt", "--type", "characters", "--output",
                     "characters.json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  result = run({program("fsdp-data"), "tokenize", "text.txt", "--tokenizer", "characters.json", "--output",
                "train.bin", "--validation-output", "validation.bin", "--validation-fraction", "0.1"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  result = run({program("fsdp-train"), testing::source_folder() + "/configs/shakespeare_char.toml",
                "training.steps=30", "data.train=[\"train.bin\"]", "data.validation=[\"validation.bin\"]",
                "data.tokenizer=characters.json", "lr_scheduler.warmup_steps=5", "run.output_dir=run",
                "evaluation.interval_steps=0"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::string log = result.out + result.err;
  const size_t loss = log.find("validation loss ");
  ASSERT_NE(loss, std::string::npos) << log;
  EXPECT_LT(std::stod(log.substr(loss + std::string("validation loss ").size())), 3.2) << log;  // ln 65: 4.2
  result = run({program("fsdp-generate"), "run", "--prompt", "First", "--max-new-tokens", "8"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("First"), std::string::npos) << result.out;
}

}  // namespace
}  // namespace fsdp::e2e
