// Runs on texts that they tokenize themselves: the same losses as on token files, at every world size, over
// kills at random points, on a machine that has none of the tokens; and the end of runs whose texts cannot be
// used.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <random>

#include "e2e/programs.h"
#include "support/tiny_config.h"

namespace fsdp::e2e {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using testing::ProgramResult;

constexpr const char* kStreamModel = R"(
[model]
vocab_size = 257
hidden_size = 40
intermediate_size = 54
num_hidden_layers = 2
num_attention_heads = 4
num_key_value_heads = 2
max_position_embeddings = 128
[data]
sequence_length = 128
document_separator = 256
shuffle_block_size = 64
[training]
steps = 240
global_batch_size = 12
reproducible = "world_size"
[optimizer]
lr = 1e-3
[fsdp]
min_num_params = 10_000
[checkpoint]
interval_steps = 5
)";

class Streams : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ofstream(folder_ / "config.toml") << kStreamModel;
    fs::create_directories(folder_ / "texts/more");
    // A pass has about 140 steps: 1,700 samples of 128 bytes.
    std::mt19937 random(3);
    for (int i = 0; i < 5; ++i) write_rows("texts/more/rows" + std::to_string(i) + ".jsonl", 80, random);
    for (int i = 0; i < 4; ++i) {
      std::ofstream(folder_ / ("texts/book" + std::to_string(i) + ".txt")) << words(random, 25'000);
    }
  }

  static std::string words(std::mt19937& random, size_t bytes) {
    std::string text;
    while (text.size() < bytes) {
      for (auto letters = 1 + random() % 9; letters-- > 0;) text += static_cast<char>('a' + random() % 26);
      text += random() % 9 == 0 ? ".\n" : " ";
    }
    return text;
  }

  void write_rows(const std::string& name, int rows, std::mt19937& random) const {
    std::ofstream file(folder_ / name);
    for (int i = 0; i < rows; ++i)
      file << R"({"text": ")" << random() % 1000 << " rows of text " << i << R"("})"
           << "\n";
    std::string long_row = words(random, 20'000);
    std::ranges::replace(long_row, '\n', ' ');
    file << R"({"text": ")" << long_row << R"("})"
         << "\n";
  }

  std::vector<std::string> command(int world_size, const std::string& output, const std::string& train,
                                   const std::vector<std::string>& overrides = {}) const {
    std::vector<std::string> words = {program("fsdp-launch"),
                                      "--nproc-per-node",
                                      std::to_string(world_size),
                                      "--",
                                      program("fsdp-train"),
                                      (folder_ / "config.toml").string(),
                                      "run.output_dir=" + (folder_ / output).string(),
                                      "data.train=[\"" + train + "\"]",
                                      "data.micro_batch_size=" + std::to_string(world_size == 1 ? 6 : 1)};
    words.insert(words.end(), overrides.begin(), overrides.end());
    return words;
  }

  ProgramResult run(int world_size, const std::string& output, const std::string& train,
                    const std::vector<std::string>& overrides = {}) const {
    return testing::run(
        command(world_size, output, train, overrides),
        {.env = {{"OMP_NUM_THREADS", "1"}, {"FSDP_CACHE_DIR", std::nullopt}}, .timeout_seconds = 300});
  }

  std::vector<double> losses(const std::string& output) const {
    return testing::values_of(folder_ / output / "metrics.jsonl", "loss");
  }

  /// Steps that a run has logged so far; its file may end in the middle of a line.
  size_t logged_steps(const std::string& output) const {
    std::ifstream file(folder_ / output / "metrics.jsonl");
    size_t steps = 0;
    for (std::string line; std::getline(file, line) && !file.eof();) {
      steps += line.find("\"loss\"") != std::string::npos ? 1 : 0;
    }
    return steps;
  }

  std::string texts() const { return (folder_ / "texts").string(); }

  testing::TemporaryFolder folder_;
};

TEST_F(Streams, HaveTheLossesOfTokenFilesAtEveryWorldSize) {
  const ProgramResult tokenized =
      testing::run({program("fsdp-data"), "tokenize", texts(), "--output", (folder_ / "all.bin").string(),
                    "--document-separator", "id:256"});
  ASSERT_EQ(tokenized.exit_code, 0) << tokenized.err;
  const std::vector<std::string> options = {"data.shuffle=false", "training.steps=180"};
  ProgramResult result = run(1, "files", folder_ / "all.bin", options);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::vector<double> expected = losses("files");
  ASSERT_EQ(expected.size(), 180u);
  for (const int world_size : {1, 3, 4}) {
    const std::string output = "stream" + std::to_string(world_size);
    result = run(world_size, output, texts(), options);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(losses(output), expected) << world_size;
  }
}

// Every third start finds no tokens of the earlier ones, as on another machine.
TEST_F(Streams, GoOnAfterKillsAsIfNoneHadBeen) {
  ProgramResult result = run(1, "undisturbed", texts());
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::vector<double> expected = losses("undisturbed");
  ASSERT_EQ(expected.size(), 240u);
  std::mt19937 random(11);
  const std::vector<int> worlds = {1, 3, 4};
  for (int kill = 0; kill < 8; ++kill) {
    testing::RunningProgram running(
        command(worlds[static_cast<size_t>(kill) % 3], "killed", texts()),
        {.env = {{"OMP_NUM_THREADS", "1"}, {"FSDP_CACHE_DIR", std::nullopt}}, .timeout_seconds = 120});
    const size_t target = logged_steps("killed") + 3 + random() % 14;
    ASSERT_TRUE(
        testing::eventually([&] { return logged_steps("killed") >= std::min<size_t>(target, 235); }, 90))
        << "kill " << kill << ": " << logged_steps("killed") << " of " << target;
    ::usleep(random() % 60'000);
    ::kill(-running.pid(), SIGKILL);
    running.wait();
    if (kill % 3 == 2) fs::remove_all(folder_ / "killed/streams");
  }
  ASSERT_LT(logged_steps("killed"), 240u);
  result = run(3, "killed", texts());
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(losses("killed"), expected);
}

// Weights make each entry an endless set of its own, so that the sets end their passes at different steps.
TEST_F(Streams, MixTheSameSamplesAtEveryWorldSizeAndAfterAKill) {
  const std::string train = texts() + "/more\", \"" + texts() + "/*.txt";
  const std::vector<std::string> options = {"data.train_weights=[0.7, 0.3]", "training.steps=120"};
  ProgramResult result = run(1, "one", train, options);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::vector<double> expected = losses("one");
  ASSERT_EQ(expected.size(), 120u);
  testing::RunningProgram running(
      command(3, "killed", train, options),
      {.env = {{"OMP_NUM_THREADS", "1"}, {"FSDP_CACHE_DIR", std::nullopt}}, .timeout_seconds = 120});
  ASSERT_TRUE(testing::eventually([&] { return logged_steps("killed") >= 47; }, 90));
  ::kill(-running.pid(), SIGKILL);
  running.wait();
  ASSERT_LT(logged_steps("killed"), 120u);
  fs::remove_all(folder_ / "killed/streams");
  result = run(4, "killed", train, options);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(losses("killed"), expected);
  result = run(1, "other", train, {"data.train_weights=[0.3, 0.7]", "training.steps=5"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(losses("other").front(), expected.front());
}

TEST_F(Streams, ValidateOnTexts) {
  const std::string option = "data.validation=[\"" + texts() + "/more\"]";
  ProgramResult result = run(3, "out", texts(), {option, "training.steps=3"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const ProgramResult tokenized =
      testing::run({program("fsdp-data"), "tokenize", texts() + "/more", "--output",
                    (folder_ / "v.bin").string(), "--document-separator", "id:256"});
  ASSERT_EQ(tokenized.exit_code, 0) << tokenized.err;
  result = run(1, "files", texts(),
               {"data.validation=[\"" + (folder_ / "v.bin").string() + "\"]", "training.steps=3"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto validation = [&](const std::string& output) {
    return testing::values_of(folder_ / output / "metrics.jsonl", "validation_loss");
  };
  ASSERT_EQ(validation("out").size(), 1u);
  EXPECT_EQ(validation("out"), validation("files"));
}

TEST_F(Streams, CountEpochs) {
  const ProgramResult result = run(
      1, "out", texts(), {"training.epochs=1", "training.global_batch_size=120", "data.micro_batch_size=60"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_GT(losses("out").size(), 10u);
  EXPECT_LT(losses("out").size(), 20u);
  EXPECT_THAT(result.err + result.out, HasSubstr("epochs"));
}

TEST_F(Streams, EndWithExitCode3ForATextThatIsGone) {
  // The blocks of this run have all tokens of a text, so the texts of the next pass are read again without
  // them.
  testing::RunningProgram running(
      command(3, "out", texts(), {"training.steps=100000", "checkpoint.interval_steps=50"}),
      {.env = {{"OMP_NUM_THREADS", "1"}}, .timeout_seconds = 120});
  ASSERT_TRUE(testing::eventually([&] { return logged_steps("out") > 3; }, 60));
  fs::remove_all(folder_ / "texts/more");
  fs::remove(folder_ / "texts/book2.txt");
  fs::remove_all(folder_ / "out/streams");
  const ProgramResult result = running.wait();
  EXPECT_EQ(result.exit_code, 3) << result.err;
  EXPECT_THAT(result.err, HasSubstr("the text " + texts() + "/"));
  EXPECT_THAT(result.err, HasSubstr("cannot be opened (No such file or directory)"));
}

TEST_F(Streams, EndWithExitCode3ForARowThatCannotBeUsed) {
  std::ofstream(folder_ / "texts/more/rows3.jsonl", std::ios::app) << "{\"txt\": 1}\n";
  const ProgramResult result = run(3, "out", texts());
  EXPECT_EQ(result.exit_code, 3) << result.err;
  EXPECT_THAT(result.err,
              HasSubstr("line 82 of " + texts() + "/more/rows3.jsonl must have a string \"text\""));
  EXPECT_EQ(run(3, "out", texts(), {"data.skip_bad=1", "training.steps=150"}).exit_code, 0);
}

TEST_F(Streams, RefuseToResumeWithOtherTexts) {
  ProgramResult result = run(1, "out", texts(), {"training.steps=5"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  std::ofstream(folder_ / "texts/book1.txt", std::ios::app) << "more";
  result = run(1, "out", texts(), {"training.steps=10"});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, HasSubstr("\"book1.txt\", has "));
  EXPECT_THAT(result.err, HasSubstr(" bytes and had "));
  result = run(1, "out", texts(), {"training.steps=10", "data.shuffle_block_size=32"});
  EXPECT_NE(result.exit_code, 0);
  EXPECT_EQ(run(1, "out", texts(), {"training.steps=10", "data.allow_changed=true"}).exit_code, 0);
}

}  // namespace
}  // namespace fsdp::e2e
