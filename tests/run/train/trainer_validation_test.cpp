#include <gtest/gtest.h>

#include <algorithm>

#include "comm/api/communicator.h"
#include "run/train/evaluate.h"
#include "run/train/trainer.h"
#include "state/manifest/folders.h"
#include "support/checkpoint_contents.h"
#include "support/trainer_fixture.h"

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

/// A run of 8 steps that validates at the fourth and the last, is told to stop when asked for the `asked`-th
/// time, and goes on.
struct StoppedRun {
  const char* name;
  int asked;
  bool validates_before_the_stop;
};

class StoppedAroundAValidation : public TrainerTest, public ::testing::WithParamInterface<StoppedRun> {};

TEST_P(StoppedAroundAValidation, ContinuesAsIfUninterrupted) {
  config_.training.steps = 8;
  config_.evaluation.interval_steps = 4;
  config_.evaluation.patience = 1;
  config_.checkpoint.keep_best = true;
  const auto validations_of = [](const fs::path& folder) {
    std::vector<std::pair<int64_t, double>> validations;
    for (const auto& line : testing::metrics_with(folder / "metrics.jsonl", "validation_loss")) {
      validations.emplace_back(line["step"], line["validation_loss"]);
    }
    return validations;
  };
  const fs::path folder = config_.run.output_dir;
  config_.run.output_dir = folder_ / "undisturbed";
  const RunSummary undisturbed = train(2, config_);
  config_.run.output_dir = folder;

  const RunSummary stopped = train_until(2, config_, GetParam().asked);
  EXPECT_TRUE(stopped.stopped);
  EXPECT_EQ(stopped.step, 4) << "another step followed";
  EXPECT_EQ(stopped.last_checkpoint.filename(), "step-00000004");
  EXPECT_EQ(validations_of(folder).size(), GetParam().validates_before_the_stop ? 1u : 0u);
  const RunSummary resumed = train(2, config_);
  EXPECT_FALSE(resumed.stopped);
  EXPECT_EQ(resumed.best->step, undisturbed.best->step);
  EXPECT_EQ(fs::read_symlink(folder / "best"), fs::read_symlink(folder_ / "undisturbed/best"));
  EXPECT_EQ(validations_of(folder), validations_of(folder_ / "undisturbed"));
  EXPECT_EQ(values_of(folder / "metrics.jsonl", "loss"),
            values_of(folder_ / "undisturbed/metrics.jsonl", "loss"));
  // A run that is over validates nothing again.
  train(2, config_);
  EXPECT_EQ(validations_of(folder), validations_of(folder_ / "undisturbed"));
}

// Each step asks once, a validation before each of its batches, and the loop after it.
INSTANTIATE_TEST_SUITE_P(All, StoppedAroundAValidation,
                         ::testing::Values(StoppedRun{"InItsStep", 4, false},
                                           StoppedRun{"BeforeItsFirstBatch", 5, false},
                                           StoppedRun{"BetweenItsBatches", 6, false}),
                         [](const auto& info) { return info.param.name; });

TEST_F(TrainerTest, ASignalDuringTheLastBatchOfAValidationIsHeededBeforeAnotherStep) {
  config_.training.steps = 8;
  config_.evaluation.interval_steps = 4;
  int batches = 0;
  {
    const auto options = config_.data;
    batches = static_cast<int>(
        data::ValidationLoader(options, config_.model.vocab_size, config_.evaluation.max_samples, {0, 2})
            .num_batches());
  }
  const RunSummary stopped = train_until(2, config_, 4 + batches + 1);
  EXPECT_TRUE(stopped.stopped);
  EXPECT_EQ(stopped.step, 4);
  EXPECT_TRUE(stopped.validation_loss.has_value());
  EXPECT_EQ(stopped.last_checkpoint.filename(), "step-00000004");
}

TEST_F(TrainerTest, ASampleThatIsToldToStopEndsAndTheRunWithIt) {
  config_.training.steps = 8;
  config_.data.validation.clear();
  config_.logging.sample_every = 4;
  config_.logging.sample_prompt = "";
  config_.logging.sample_tokens = 6;
  const RunSummary stopped = train_until(2, config_, 4 + 2);
  EXPECT_TRUE(stopped.stopped);
  EXPECT_EQ(stopped.step, 4);
  EXPECT_EQ(stopped.last_checkpoint.filename(), "step-00000004");
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
  EXPECT_EQ(summary.best->value, *best);
  EXPECT_EQ(summary.best->step, 2 * (best - losses.begin() + 1));
  // What the link leads to has that loss.
  comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
    EXPECT_NEAR(evaluate(config_, borrowed(communicator), folder_ / "out/best").validation->loss, *best,
                1e-6);
  });
}

struct MetricCase {
  const char* metric;
  bool higher_is_better;
};

class BestByMetric : public TrainerTest, public ::testing::WithParamInterface<MetricCase> {};

TEST_P(BestByMetric, IsThatOfMetricsJsonl) {
  config_.training.steps = 10;
  config_.evaluation.interval_steps = 2;
  config_.evaluation.accuracy = true;
  config_.evaluation.best_metric = std::string(GetParam().metric);
  config_.checkpoint.keep_best = true;
  config_.checkpoint.keep_last = 1;
  config_.optimizer.lr = 3e-2;
  const RunSummary summary = train(2, config_);
  std::vector<double> values;
  for (const auto& line : testing::metrics_with(folder_ / "out/metrics.jsonl", GetParam().metric)) {
    if (line["step"].get<int64_t>() % 2 == 0) values.push_back(line[GetParam().metric]);
  }
  ASSERT_EQ(values.size(), 5u);
  const auto best = GetParam().higher_is_better ? std::max_element(values.begin(), values.end())
                                                : std::min_element(values.begin(), values.end());
  EXPECT_EQ(summary.best->value, *best);
  const int64_t step = 2 * (best - values.begin() + 1);
  EXPECT_EQ(summary.best->step, step);
  EXPECT_EQ(fs::read_symlink(folder_ / "out/best"), checkpoint::step_folder_name(step));
}

INSTANTIATE_TEST_SUITE_P(All, BestByMetric,
                         ::testing::Values(MetricCase{"validation_perplexity", false},
                                           MetricCase{"validation_bits_per_byte", false},
                                           MetricCase{"validation_accuracy", true}, MetricCase{"loss", false},
                                           MetricCase{"grad_norm", false}),
                         [](const auto& info) { return std::string(info.param.metric); });

TEST_F(TrainerTest, EvaluatesWhatARunLeaves) {
  const double loss = *train(2, config_).validation_loss;
  const auto files_before = std::distance(fs::recursive_directory_iterator(folder_ / "out"), {});
  for (int world : {1, 3}) {
    comm::run_ranks_as_threads(world, [&](comm::Communicator& communicator) {
      const Validation found = *evaluate(config_, borrowed(communicator), folder_ / "out").validation;
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
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
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
