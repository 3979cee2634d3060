#include <gtest/gtest.h>

#include <algorithm>

#include "checkpoint/folders.h"
#include "comm/single_communicator.h"
#include "support/checkpoint_contents.h"
#include "support/trainer_fixture.h"
#include "train/evaluate.h"
#include "train/trainer.h"

namespace fsdp::train {
namespace {

using testing::borrowed;
using testing::values_of;
namespace fs = std::filesystem;

TEST_F(TrainerTest, EndsEarlyWhenValidationsGetNoBetter) {
  config_.training.steps = 12;
  config_.evaluation.interval_steps = 2;
  config_.evaluation.patience = 2;
  config_.evaluation.min_delta = 100;  // the first stays the best
  RunSummary summary = train(2, config_);
  EXPECT_TRUE(summary.ended_early);
  EXPECT_FALSE(summary.stopped);
  EXPECT_EQ(summary.step, 6);
  EXPECT_EQ(summary.best->step, 2);
  EXPECT_EQ(summary.last_checkpoint.filename(), "step-00000006");
  // A run that resumes from there has nothing left to do, at any world size.
  summary = train(1, config_);
  EXPECT_TRUE(summary.ended_early);
  EXPECT_EQ(summary.step, 6);
  // With more patience it goes on.
  config_.evaluation.patience = 4;
  EXPECT_EQ(train(2, config_).step, 10);
}

TEST_F(TrainerTest, KeepsTheBestCheckpoint) {
  config_.training.steps = 8;
  config_.evaluation.interval_steps = 2;
  config_.checkpoint.keep_best = true;
  config_.checkpoint.keep_last = 1;
  config_.optimizer.lr = 3e-2;
  config_.lr_scheduler.name = "constant";
  RunSummary summary = train(2, config_);
  const std::vector<double> losses = values_of(folder_ / "out/metrics.jsonl", "validation_loss");
  ASSERT_EQ(losses.size(), 4u);
  const auto best = std::min_element(losses.begin(), losses.end());
  EXPECT_EQ(summary.best->loss, *best);
  EXPECT_EQ(summary.best->step, 2 * (best - losses.begin() + 1));
  // What the link leads to has that loss.
  comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
    EXPECT_NEAR(evaluate(config_, borrowed(communicator), folder_ / "out/best").loss, *best, 1e-6);
  });
}

TEST_F(TrainerTest, EvaluatesWhatARunLeaves) {
  const double loss = *train(2, config_).validation_loss;
  const auto files_before = std::distance(fs::recursive_directory_iterator(folder_ / "out"), {});
  for (int world : {1, 3}) {
    comm::run_ranks_as_threads(world, [&](comm::Communicator& communicator) {
      const Validation found = evaluate(config_, borrowed(communicator), folder_ / "out");
      EXPECT_NEAR(found.loss, loss, 1e-6);
      EXPECT_EQ(found.bytes, found.tokens);  // data.tokenizer is "bytes"
    });
  }
  EXPECT_EQ(std::distance(fs::recursive_directory_iterator(folder_ / "out"), {}), files_before);
  config_.data.validation.clear();
  try {
    evaluate(config_, std::make_shared<comm::SingleCommunicator>(), folder_ / "out");
    FAIL();
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), util::ErrorKind::kUsage);
    EXPECT_NE(std::string(error.what()).find("data.validation"), std::string::npos);
  }
}

TEST_F(TrainerTest, ValidationLossDoesNotDependOnTheWorldSize) {
  std::vector<double> losses;
  for (int world : {1, 2, 3}) {
    config_.run.output_dir = folder_ / ("out" + std::to_string(world));
    config_.optimizer.lr = 0;
    losses.push_back(*train(world, config_).validation_loss);
  }
  EXPECT_NEAR(losses[1], losses[0], 1e-6);
  EXPECT_NEAR(losses[2], losses[0], 1e-6);
}

TEST_F(TrainerTest, ValidatesAndSavesAtTheIntervalsAndKeepsTheLast) {
  config_.training.steps = 7;
  config_.evaluation.interval_steps = 2;
  config_.checkpoint.interval_steps = 2;
  config_.checkpoint.keep_last = 2;
  train(1, config_);
  std::vector<int64_t> validated, kept;
  for (const auto& line : testing::metrics_with(folder_ / "out/metrics.jsonl", "validation_loss")) {
    validated.push_back(line["step"]);
  }
  EXPECT_EQ(validated, (std::vector<int64_t>{2, 4, 6, 7}));
  for (const auto& found : checkpoint::find_checkpoints(folder_ / "out").complete) kept.push_back(found.step);
  EXPECT_EQ(kept, (std::vector<int64_t>{6, 7}));
}

}  // namespace
}  // namespace fsdp::train
