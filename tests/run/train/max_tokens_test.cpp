#include <gtest/gtest.h>

#include <fstream>

#include "state/manifest/folders.h"
#include "support/checkpoint_contents.h"
#include "support/trainer_fixture.h"

namespace fsdp::train {
namespace {

using testing::values_of;

class MaxTokens : public TrainerTest {
 protected:
  /// Documents of 1 to 11 tokens and the separator 0.
  void SetUp() override {
    TrainerTest::SetUp();
    std::ofstream file(folder_ / "documents.bin", std::ios::binary);
    const auto put = [&file](int id) { file.put(static_cast<char>(id)).put(0); };
    for (int i = 0; i < 150; ++i) {
      for (int k = 0; k < 1 + (i * 5) % 11; ++k) put(1 + (i * 3 + k * k) % 16);
      put(0);
    }
    file.close();
    config_.data.train = {folder_ / "documents.bin"};
    config_.data.validation.clear();
    config_.data.documents = "split";
    config_.data.document_separator = 0;
    config_.data.max_tokens = 24;
    config_.training.global_batch_size = 4;
    config_.training.gradient_accumulation_steps = 0;
  }

  std::vector<double> values(const std::string& key) {
    return values_of(std::filesystem::path(config_.run.output_dir) / "metrics.jsonl", key);
  }
};

TEST_F(MaxTokens, LossesAgreeAtAnyNumberOfRanks) {
  std::vector<std::vector<double>> losses, tokens;
  for (int world : {1, 2, 4}) {
    config_.run.output_dir = folder_ / ("out" + std::to_string(world));
    train(world, config_);
    losses.push_back(values("loss"));
    tokens.push_back(values("tokens"));
  }
  ASSERT_EQ(losses[0].size(), 6u);
  expect_near(losses[1], losses[0]);
  expect_near(losses[2], losses[0]);
  EXPECT_EQ(tokens[1], tokens[0]);
  EXPECT_EQ(tokens[2], tokens[0]);
  for (size_t i = 0; i < tokens[0].size(); ++i) {
    const double of_step = tokens[0][i] - (i == 0 ? 0 : tokens[0][i - 1]);
    EXPECT_GT(of_step, 0);
    EXPECT_LE(of_step, 4 * 24) << "four batches";
  }
}

TEST_F(MaxTokens, ResumesAtAnotherNumberOfRanks) {
  config_.run.output_dir = folder_ / "whole";
  train(1, config_);
  const std::vector<double> whole = values("loss");
  config_.run.output_dir = folder_ / "parts";
  config_.training.steps = 3;
  train(2, config_);
  config_.training.steps = 6;
  train(4, config_);
  expect_near(values("loss"), whole);
}

TEST_F(MaxTokens, AnEpochIsEveryBatchOnce) {
  config_.training.global_batch_size = 0;
  config_.training.gradient_accumulation_steps = 1;
  const auto loader =
      data::TrainLoader(config_.data, config_.model.vocab_size, static_cast<uint64_t>(config_.run.seed), {});
  config_.training.epochs = 1;
  const RunSummary summary = train(1, config_);
  EXPECT_EQ(summary.step, loader.num_samples());
  int64_t targets = 0;
  for (int i = 0; i < 150; ++i)
    targets += 1 + (i * 5) % 11;  // of n tokens and the separator, n follow another
  EXPECT_EQ(values("tokens").back(), targets);
}

TEST_F(MaxTokens, ResumingWithAnotherLimitIsRefused) {
  config_.training.steps = 2;
  train(1, config_);
  config_.training.steps = 4;
  config_.data.max_tokens = 32;
  EXPECT_EQ(failure(1, config_, "data.max_tokens was 24 and is "), ErrorKind::kUsage);
  config_.data.max_tokens = 0;
  EXPECT_EQ(failure(1, config_, "data.max_tokens was 24 and is "), ErrorKind::kUsage);
}

}  // namespace
}  // namespace fsdp::train
