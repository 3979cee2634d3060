// What programs say of command lines that are wrong: what was expected, what was found, and the remedy.

#include "base/cli/usage_error.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/cli/cli_fixtures.h"
#include "base/cli/program.h"
#include "base/util/error.h"
#include "support/program_path.h"
#include "support/run_program.h"

namespace fsdp::cli {
namespace {

/// A program that does not train is refused: its name, its arguments, and what it says.
struct Refusal {
  std::string program;
  std::vector<std::string> arguments;
  std::string text;
};

void expect_refused(const std::vector<Refusal>& refusals) {
  for (const Refusal& refusal : refusals) {
    std::vector<std::string> command = {testing::program_path(refusal.program)};
    command.insert(command.end(), refusal.arguments.begin(), refusal.arguments.end());
    const auto result = testing::run(command);
    EXPECT_EQ(result.exit_code, 2) << refusal.text;
    EXPECT_EQ(result.err, "error: command line: " + refusal.text + "\n");
    EXPECT_EQ(result.out, "");
  }
}

TEST(UsageErrors, NameTheNearestOptionOfEveryProgram) {
  expect_refused({{"fsdp-ckpt",
                   {"consolidate", "a", "b", "--optimiser"},
                   "expected an option of fsdp-ckpt consolidate; found "
                   "--optimiser; did you mean --optimizer?"},
                  {"fsdp-launch",
                   {"--nprocs-per-node", "2", "--", "true"},
                   "expected an option of fsdp-launch; found --nprocs-per-node; did you mean "
                   "--nproc-per-node?"},
                  {"fsdp-data",
                   {"inspect", "--tokeniser=bytes", "x"},
                   "expected an option of fsdp-data inspect; found "
                   "--tokeniser=bytes; did you mean --tokenizer?"},
                  {"fsdp-plan",
                   {"--gpu-memory", "40"},
                   "expected an option of fsdp-plan; found --gpu-memory; did you mean --gpu-memory-gib?"},
                  {"fsdp-generate",
                   {"run", "--top_p", "0.9"},
                   "expected an option of fsdp-generate; found --top_p; did you mean --top-p?"},
                  {"fsdp-train",
                   {"c.toml", "--print-confg"},
                   "expected an option of fsdp-train; found --print-confg; did you mean --print-config?"},
                  {"fsdp-ckpt",
                   {"--json", "inspect", "x"},
                   "expected an option of fsdp-ckpt; found --json; write it after its command, as in "
                   "fsdp-ckpt consolidate --json"},
                  {"fsdp-data",
                   {"decode", "--frobnicate", "x"},
                   "expected an option of fsdp-data decode; found --frobnicate; see fsdp-data decode "
                   "--help"}});
}

TEST(UsageErrors, TakeTheDashesFromKeys) {
  const std::string found = "expected keys of the config without dashes; found ";
  expect_refused(
      {{"fsdp-train", {"c.toml", "--training.steps=5"}, found + "--training.steps=5; write training.steps=5"},
       {"fsdp-train",
        {"c.toml", "--training.stps", "5"},
        found + "--training.stps; write training.steps=VALUE"},
       {"fsdp-plan",
        {"c.toml", "--micro-batch-size=2"},
        found + "--micro-batch-size=2; write data.micro_batch_size=2"},
       {"fsdp-train", {"doctor", "-training.steps=5"}, found + "-training.steps=5; write training.steps=5"}});
}

TEST(UsageErrors, AnswerFlagsOfOtherTrainersByOurKeys) {
  const std::string found = "expected keys of the config without dashes; found ";
  expect_refused(
      {{"fsdp-train",
        {"c.toml", "--per_device_train_batch_size", "4"},
        found + "--per_device_train_batch_size; write data.micro_batch_size=VALUE"},
       {"fsdp-train",
        {"c.toml", "--learning-rate=1e-4"},
        found + "--learning-rate=1e-4; write optimizer.lr=1e-4"},
       {"fsdp-plan", {"c.toml", "--bf16"}, found + "--bf16; write mixed_precision.param_dtype=bfloat16"},
       {"fsdp-train",
        {"c.toml", "--compile"},
        found + "--compile; nothing is compiled at run time: training.fused_kernels, on by default, "
                "fuses operations"}});
}

TEST(UsageErrors, NameTheNearestCommandAndValue) {
  expect_refused(
      {{"fsdp-train",
        {"init", "finetun"},
        "preset: expected one of quickstart, pretrain, finetune, chats, long-context, shakespeare_char, low-memory, offload, multi-node, hsdp; "
        "found finetun; did you mean finetune?"},
       {"fsdp-data",
        {"tokenzie", "x"},
        "expected a command of fsdp-data; found tokenzie; did you mean tokenize?"},
       {"fsdp-ckpt",
        {"export", "a", "b", "--dtype", "BFloat16"},
        "--dtype: expected one of float32, bfloat16, float16, float64; found "
        "BFloat16; did you mean bfloat16?"}});
  const auto result = testing::run({testing::program_path("fsdp-train"), "intit", "finetune"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("found intit, which is neither; did you mean init?"), std::string::npos)
      << result.err;
}

TEST(UsageErrors, SayWhatIsMissing) {
  expect_refused(
      {{"fsdp-ckpt",
        {"reshard", "a", "b"},
        "expected fsdp-ckpt reshard [OPTIONS] CHECKPOINT OUTPUT; found no --world-size (number of "
        "files to shard the tensors into); see fsdp-ckpt reshard --help"},
       {"fsdp-ckpt",
        {"inspect", "--json"},
        "expected fsdp-ckpt inspect [OPTIONS] PATH; found no PATH (a checkpoint, a run's output folder, a "
        "safetensors file or a folder of them); for example: fsdp-ckpt inspect checkpoints/run"},
       {"fsdp-ckpt",
        {"inspect", "a", "b"},
        "expected fsdp-ckpt inspect [OPTIONS] PATH; found b in addition; leave it out, or put words "
        "with spaces in quotes"}});
  const auto nothing = testing::run({testing::program_path("fsdp-train")});
  EXPECT_EQ(nothing.exit_code, 2);
  EXPECT_TRUE(nothing.err.starts_with("error: command line: expected a config (a TOML file) or a command ("))
      << nothing.err;
  EXPECT_NE(nothing.err.find(
                "found neither; fsdp-train init quickstart --output config.toml writes a first config"),
            std::string::npos)
      << nothing.err;
}

TEST(UsageErrors, SayWhichValuesAndPairsDoNotFit) {
  expect_refused({{"fsdp-generate",
                   {"run", "--seed", "x"},
                   "--seed: expected an integer >= 0; found x; see fsdp-generate --help"},
                  {"fsdp-generate",
                   {"run", "--num-samples", "0"},
                   "--num-samples: expected a number from 1 to 1000000; found 0"},
                  {"fsdp-generate",
                   {"run", "--prompt"},
                   "--prompt: expected a value after it; found none; see fsdp-generate --help"},
                  {"fsdp-generate",
                   {"run", "--prompt", "a", "--prompt-file", "b"},
                   "expected one of --prompt and --prompt-file; found both; leave one out"},
                  {"fsdp-train",
                   {"c.toml", "--all-units"},
                   "--all-units: expected --explain-step with it; found none; add it"}});
}

TEST(UsageErrors, LeaveTheWordsOfALaunchedProgramAlone) {
  const auto result =
      testing::run({testing::program_path("fsdp-launch"), "--max-restarts", "x", "prog", "--y"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.err.find("--y"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("--max-restarts: expected an integer; found x"), std::string::npos) << result.err;
}

TEST(UsageErrors, NameFlagsInPlaceOfTheFieldsOfTheLibrary) {
  const FlagNames names = {{"overwrite", "--force"}};
  EXPECT_EQ(with_flags("`max_lines` is 0; `overwrite` it, or `run this`", names),
            "--max-lines is 0; --force it, or `run this`");
  try {
    run_command([]() -> int { fail(ErrorKind::kData, "give `overwrite`"); }, names);
    FAIL();
  } catch (const util::Error& error) {
    EXPECT_STREQ(error.what(), "give --force");
    EXPECT_EQ(error.kind(), ErrorKind::kData);
  }
}

}  // namespace
}  // namespace fsdp::cli
