// What `fsdp-train init` writes, run for two steps at a reduced size.

#include <gtest/gtest.h>

#include <fstream>

#include "base/util/file.h"
#include "e2e/programs.h"
#include "support/source_folder.h"

namespace fsdp::e2e {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

testing::ProgramResult init(const Words& words, const testing::RunOptions& options = {}) {
  Words command = {program("fsdp-train"), "init"};
  command.insert(command.end(), words.begin(), words.end());
  return testing::run(command, options);
}

/// Tokens of the tokenizer `bytes`, with their turns.
void write_chats(const fs::path& folder) {
  std::ofstream chats(folder / "chats.jsonl");
  for (int i = 0; i < 300; ++i) chats << R"({"prompt": "a)" << i << R"(", "completion": "b"})" << '\n';
  chats.close();
  const auto result = testing::run({program("fsdp-data"), "tokenize", folder / "chats.jsonl", "--chat",
                                    "--chat-template", "none", "--output", folder / "train.bin"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
}

class Init : public ::testing::TestWithParam<std::string> {};

TEST_P(Init, WritesWhatTrains) {
  testing::TemporaryFolder folder;
  const testing::RunOptions options{.working_folder = folder.path()};
  const auto written = init({GetParam(), "--output", "c.toml"}, options);
  ASSERT_EQ(written.exit_code, 0) << written.err;
  if (GetParam() == "chats") {
    write_chats(folder.path());
  } else {
    testing::write_token_file(folder / "train.bin", 2000, 17);
  }
  const Words reduced = {GetParam() == "chats" ? "model.vocab_size=256" : "model.vocab_size=17",
                         "model.hidden_size=16",
                         "model.intermediate_size=24",
                         "model.num_hidden_layers=2",
                         "model.num_attention_heads=4",
                         "model.num_key_value_heads=2",
                         "model.max_position_embeddings=32",
                         "data.sequence_length=16",
                         "data.micro_batch_size=1",
                         "data.train=[\"" + (folder / "train.bin").string() + "\"]",
                         "data.validation=[\"" + (folder / "train.bin").string() + "\"]",
                         "data.tokenizer=bytes",
                         "evaluation.max_samples=4",
                         "training.gradient_accumulation_steps=2",
                         "training.steps=2",
                         "lr_scheduler.warmup_steps=1",
                         "logging.interval_steps=1",
                         "fsdp.min_num_params=700"};
  const auto train = [&](const std::string& config, const std::string& output, Words more) {
    more.insert(more.end(), reduced.begin(), reduced.end());
    more.push_back("run.output_dir=" + (folder / output).string());
    return launch_training(4, config, more);
  };
  Words more;
  // Weights to begin with.
  if (GetParam() == "finetune" || GetParam() == "chats" || GetParam() == "long-context") {
    Words random = {"model.init_from=\"\""};
    if (GetParam() == "long-context") random.push_back("model.preset=llama3.1-8b");
    const auto first = train(testing::source_folder() + "/configs/finetune.toml", "first", random);
    ASSERT_EQ(first.exit_code, 0) << first.err;
    const auto weights = testing::run(
        {program("fsdp-ckpt"), "export", (folder / "first").string(), (folder / "weights").string()});
    ASSERT_EQ(weights.exit_code, 0) << weights.err;
    more = {"model.init_from=\"" + (folder / "weights").string() + "\""};
  }
  if (GetParam() == "long-context") more.push_back("lora.rank=4");
  if (GetParam() == "chats")
    more.insert(more.end(), {"data.max_tokens=32", "lora.rank=4", "training.epochs=0"});
  const auto result = train((folder / "c.toml").string(), "out", more);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  // Blocks in 4 bits are too small here to be units, which a run says.
  if (GetParam() != "long-context") {
    EXPECT_EQ(result.err.find("warn"), std::string::npos) << result.err;
  }
  EXPECT_NE(result.out.find("finished at step 2"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("validation loss"), std::string::npos) << result.out;
  EXPECT_TRUE(fs::exists(folder / "out/step-00000002/manifest.json"));
}

INSTANTIATE_TEST_SUITE_P(All, Init,
                         ::testing::Values("quickstart", "pretrain", "finetune", "chats", "long-context",
                                           "shakespeare_char", "low-memory", "offload", "multi-node", "hsdp"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(InitCommand, WritesToStdoutOrToANewFile) {
  testing::TemporaryFolder folder;
  const testing::RunOptions options{.working_folder = folder.path()};
  const auto text = init({}, options);
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_EQ(text.out, init({"quickstart"}, options).out);
  EXPECT_EQ(text.out, util::read_file(testing::source_folder() + "/configs/quickstart.toml"));
  EXPECT_EQ(init({"pretrain", "--output", "c.toml"}, options).exit_code, 0);
  const std::string first = util::read_file(folder / "c.toml");
  EXPECT_NE(first.find("-- fsdp-train c.toml\n"), std::string::npos) << "the command names the file";
  EXPECT_EQ(first.find("configs/"), std::string::npos);

  const auto refused = init({"hsdp", "--output", "c.toml"}, options);
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_NE(refused.err.find("c.toml"), std::string::npos) << refused.err;
  EXPECT_NE(refused.err.find("--force"), std::string::npos) << refused.err;
  EXPECT_EQ(util::read_file(folder / "c.toml"), first);
  EXPECT_EQ(init({"hsdp", "--output", "c.toml", "--force"}, options).exit_code, 0);
  EXPECT_NE(util::read_file(folder / "c.toml"), first);

  const auto unknown = init({"pretran"}, options);
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_NE(unknown.err.find("finetune"), std::string::npos) << unknown.err;
}

TEST(InitCommand, DoesNotHideAConfigOfItsName) {
  testing::TemporaryFolder folder;
  const testing::RunOptions options{.working_folder = folder.path()};
  fs::copy(testing::source_folder() + "/configs/quickstart.toml", folder / "init");
  const auto result = testing::run({program("fsdp-train"), "./init", "--print-config"}, options);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("# ./init:"), std::string::npos) << result.out;
}

TEST(InitFromConfig, TranslatesTheConfigOfAnotherTrainer) {
  testing::TemporaryFolder folder;
  const testing::RunOptions options{.working_folder = folder.path()};
  const std::string foreign = testing::source_folder() + "/tests/setup/translate/foreign/torchtitan.toml";
  const auto written = init({"--from-config", foreign, "--output", "c.toml"}, options);
  ASSERT_EQ(written.exit_code, 0) << written.err;
  EXPECT_EQ(written.out, "wrote c.toml\n");
  EXPECT_EQ(written.err,
            foreign +
                " is a config of torchtitan (TOML); of its 28 names with a value "
                "parallelism.pipeline_parallel_degree, compile.enable, validation.freq were left out, "
                "and comments in the config say why and what to do before the run\n");
  const auto checked = testing::run({program("fsdp-train"), "print-config", "c.toml"}, options);
  ASSERT_EQ(checked.exit_code, 0) << checked.err;
  EXPECT_NE(checked.out.find("steps = 500"), std::string::npos);
  const auto both = init({"chats", "--from-config", foreign}, options);
  EXPECT_EQ(both.exit_code, 2);
}

}  // namespace
}  // namespace fsdp::e2e
