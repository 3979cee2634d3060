// Adapters through the programs: training on two processes, the formula of a step, exports, generation,
// refusals.

#include <gtest/gtest.h>

#include <algorithm>

#include "base/util/error.h"
#include "base/util/file.h"
#include "e2e/programs.h"

namespace fsdp::e2e {
namespace {

class Lora : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::write_token_file(folder_ / "train.bin", 2000, 17);
    std::ofstream(folder_ / "config.toml") << kOddModel;
    const auto base = launch({"training.steps=1", "run.output_dir=" + path("base")});
    ASSERT_EQ(base.exit_code, 0) << base.err;
  }

  std::string path(const std::string& name) { return (folder_ / name).string(); }

  testing::ProgramResult launch(std::vector<std::string> overrides) {
    overrides.push_back("data.train=[\"" + path("train.bin") + "\"]");
    return launch_training(2, folder_ / "config.toml", overrides);
  }

  /// Adapters of the base.
  testing::ProgramResult train(const std::vector<std::string>& more) {
    std::vector<std::string> overrides = {"model.init_from=" + path("base"), "lora.rank=4",
                                          "lora.targets=[\"*q_proj\", \"*down_proj\"]",
                                          "run.output_dir=" + path("out")};
    overrides.insert(overrides.end(), more.begin(), more.end());
    return launch(overrides);
  }

  testing::ProgramResult ckpt(const std::vector<std::string>& arguments) {
    std::vector<std::string> command = {program("fsdp-ckpt")};
    command.insert(command.end(), arguments.begin(), arguments.end());
    return testing::run(command);
  }

  testing::TemporaryFolder folder_;
};

TEST_F(Lora, TheFormulaIsThatOfTheStep) {
  const auto explained =
      train({"--explain-step", "training.gradient_accumulation_steps=3", "fsdp.keep_after_forward=[\"*\"]"});
  EXPECT_EQ(explained.exit_code, 0) << explained.err;
  EXPECT_NE(explained.out.find("  root.trained "), std::string::npos) << explained.out;
  size_t equal = 0;
  for (size_t at = explained.out.find("  equal\n"); at != std::string::npos;
       at = explained.out.find("  equal\n", at + 1)) {
    ++equal;
  }
  EXPECT_EQ(equal, 9) << explained.out;
  EXPECT_NE(explained.out.find("  within the bound\n"), std::string::npos) << explained.out;
}

TEST_F(Lora, IsExportedAndGeneratesAndRefusesWhatDoesNotFit) {
  const auto trained = train({"training.steps=3"});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_NE(trained.err.find("lora: adapters of 6 linear layers are trained"), std::string::npos)
      << trained.err;

  const auto neither = ckpt({"export", path("out"), path("exported")});
  EXPECT_EQ(neither.exit_code, static_cast<int>(ErrorKind::kUsage));
  EXPECT_NE(neither.err.find("choose --merge or --adapter"), std::string::npos) << neither.err;
  EXPECT_EQ(std::ranges::count(neither.err, '\n'), 2) << "a line beside that of the chosen checkpoint";
  for (const char* flag : {"--merge", "--adapter"}) {
    const auto whole = ckpt({"export", path("base"), path("exported"), flag});
    EXPECT_EQ(whole.exit_code, static_cast<int>(ErrorKind::kUsage)) << flag;
    EXPECT_NE(whole.err.find(std::string("leave out ") + flag), std::string::npos) << whole.err;
  }
  for (const char* flag : {"--merge", "--adapter"}) {
    const auto exported = ckpt({"export", path("out"), path(flag), flag});
    EXPECT_EQ(exported.exit_code, 0) << exported.err;
    const bool whole = flag == std::string("--merge");
    EXPECT_NE(exported.out.find(whole ? "/config.json: the model's config\n"
                                      : "/adapter_config.json: PEFT's config of the adapters\n"),
              std::string::npos)
        << exported.out;
  }
  EXPECT_EQ(util::read_file(path("--merge") + "/config.json").find("fsdp_lora"), std::string::npos);
  EXPECT_NE(util::read_file(path("--adapter") + "/adapter_config.json").find("\"lora_alpha\": 16"),
            std::string::npos);

  // For llama.cpp: the whole model, and the adapters alone.
  for (const char* flag : {"--merge", "--adapter"}) {
    const std::string file = path(std::string(flag) + ".gguf");
    std::vector<std::string> arguments = {"export", path("out"), file, "--format", "gguf", flag};
    if (flag == std::string("--merge")) arguments.insert(arguments.end(), {"--tokenizer", "none"});
    const auto exported = ckpt(arguments);
    EXPECT_EQ(exported.exit_code, 0) << exported.err;
    EXPECT_EQ(util::read_file(file).substr(0, 4), "GGUF");
  }
  EXPECT_NE(util::read_file(path("--adapter.gguf")).find("adapter.lora.alpha"), std::string::npos);
  EXPECT_NE(ckpt({"export", path("out"), path("no.gguf"), "--format", "gguf"}).err.find("choose --merge"),
            std::string::npos);
  EXPECT_EQ(ckpt({"export", path("out"), path("no.gguf"), "--format", "gguf", "--adapter", "--type", "q8_0"})
                .exit_code,
            static_cast<int>(ErrorKind::kUsage));

  std::vector<std::string> texts;
  for (const char* model : {"out", "--merge", "base"}) {
    const auto generated = testing::run({program("fsdp-generate"), path(model), "--tokenizer", "bytes",
                                         "--max-new-tokens", "8", "--temperature", "0"});
    texts.push_back(generated.out);
    EXPECT_EQ(generated.exit_code, 0) << generated.err;
  }
  EXPECT_EQ(texts[0], texts[1]);

  const auto quantized = train({"training.steps=5", "lora.quantize=nf4"});  // goes on from step 3
  EXPECT_EQ(quantized.exit_code, 0) << quantized.err;

  const auto other = train({"training.steps=7", "lora.rank=5"});
  EXPECT_EQ(other.exit_code, static_cast<int>(ErrorKind::kCheckpoint)) << other.err;
  EXPECT_NE(other.err.find("lora.rank must be 4"), std::string::npos) << other.err;
}

}  // namespace
}  // namespace fsdp::e2e
