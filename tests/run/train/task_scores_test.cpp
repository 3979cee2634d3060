#include "run/train/task_scores.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "base/util/error.h"
#include "run/train/evaluate.h"
#include "support/trainer_fixture.h"

namespace fsdp::train {
namespace {

using ::testing::HasSubstr;

class TaskTest : public TrainerTest {
 protected:
  TaskTest() {
    config_.training.steps = 4;
    config_.evaluation.interval_steps = 2;
    std::ofstream(folder_ / "quiz.jsonl")
        << R"({"context": "\u0001\u0002", "choices": ["\u0003", "\u0003\u0004", "\u0005"], "answer": 0}
{"context": "", "choices": ["\u0006\u0001", "\u0002"], "answer": 1}
{"context": "\u0003\u0004\u0005\u0006", "choices": ["\u0007", "\b\u0001\u0002"], "answer": 0}
)";
    std::ofstream(folder_ / "texts.jsonl")
        << "{\"text\": \"\\u0001\\u0002\\u0003\\u0004\"}\n{\"text\": \"\\u0005\"}\n";
    std::ofstream(folder_ / "answers.jsonl")
        << R"({"context": "\u0001\u0002", "until": ["\u0003"], "answer": "", "max_new_tokens": 3})"
        << "\n";
    config_.evaluation.tasks = {folder_ / "quiz.jsonl", folder_ / "texts.jsonl", folder_ / "answers.jsonl"};
  }

  /// The results for the weights that a run has left, on so many ranks.
  std::map<std::string, double> found_by(int world, const config::Config& config) {
    std::map<std::string, double> found;
    comm::run_ranks_as_threads(world, [&](comm::Communicator& communicator) {
      const Evaluation evaluation = evaluate(config, testing::borrowed(communicator), folder_ / "out");
      if (communicator.rank() != 0) return;
      const nlohmann::ordered_json numbers = task_numbers(evaluation.tasks);
      for (const auto& [name, value] : numbers.items()) found[name] = value.get<double>();
    });
    return found;
  }
};

TEST_F(TaskTest, AreAnsweredAlikeByAnyNumberOfRanks) {
  train(2, config_);
  const auto expected = found_by(1, config_);
  EXPECT_EQ(expected.size(), 6u + 3u + 1u)
      << "acc, acc_norm and acc_bytes with errors, perplexities, a match";
  for (int world : {2, 3, 5}) {
    const auto found = found_by(world, config_);
    ASSERT_EQ(found.size(), expected.size());
    for (const auto& [name, value] : expected)
      EXPECT_NEAR(found.at(name), value, 1e-5 * (1 + std::abs(value))) << name << world;
  }
  config_.fsdp.layout = "per_parameter";
  for (const auto& [name, value] : found_by(3, config_))
    EXPECT_NEAR(expected.at(name), value, 1e-5 * (1 + std::abs(value))) << name;
}

TEST_F(TaskTest, AreInTheMetricsOfARunWhenItValidates) {
  train(2, config_);
  const auto lines = testing::metrics_with(folder_ / "out/metrics.jsonl", "task/texts/bits_per_byte");
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0]["step"], 2);
  EXPECT_EQ(lines[1]["step"], 4);
  EXPECT_NE(lines[0]["task/texts/bits_per_byte"], lines[1]["task/texts/bits_per_byte"])
      << "the model has learnt";
  for (const auto& [name, value] : found_by(2, config_)) {
    ASSERT_TRUE(lines[1].contains(name)) << name;
    EXPECT_NEAR(lines[1][name].get<double>(), value, 1e-5) << name;
  }
}

TEST_F(TaskTest, AreAnsweredByAModelThatIsCutToo) {
  config_.evaluation.tasks.pop_back();
  train(2, config_);
  const auto expected = found_by(1, config_);
  config_.mesh.model = 2;
  for (const auto& [name, value] : found_by(4, config_))
    EXPECT_NEAR(expected.at(name), value, 1e-5 * (1 + std::abs(value))) << name;
  config_.evaluation.tasks = {folder_ / "answers.jsonl"};
  EXPECT_EQ(failure(4, config_, "answers.jsonl: expected questions with choices, or texts, with mesh.model"),
            ErrorKind::kUsage);
}

TEST_F(TaskTest, DoNotChangeTheTraining) {
  train(2, config_);
  const auto with = testing::values_of(folder_ / "out/metrics.jsonl", "loss");
  std::filesystem::remove_all(folder_ / "out");
  config_.evaluation.tasks.clear();
  train(2, config_);
  EXPECT_EQ(testing::values_of(folder_ / "out/metrics.jsonl", "loss"), with);
}

TEST_F(TaskTest, AreAnsweredByStoredWeightsWithoutValidationData) {
  train(2, config_);
  const auto expected = testing::values_of(folder_ / "out/metrics.jsonl", "task/texts/bits_per_byte");
  config_.data.validation.clear();
  comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
    const Evaluation found = evaluate(config_, testing::borrowed(communicator), folder_ / "out");
    EXPECT_FALSE(found.validation.has_value());
    ASSERT_EQ(found.tasks.size(), 3u);
    EXPECT_EQ(found.tasks[1].task, "texts");
    EXPECT_EQ(found.tasks[1].questions, 2);
    EXPECT_NEAR(found.tasks[1].metrics.back().value, expected.back(), 1e-5);
    EXPECT_THAT(evaluation_text(found), HasSubstr("task answers: exact_match "));
  });
}

TEST_F(TaskTest, StopWhenARankIsAskedTo) {
  config_.evaluation.interval_steps = 1;
  const RunSummary summary = train_until(2, config_, /*asked=*/4);
  EXPECT_TRUE(summary.stopped);
}

TEST_F(TaskTest, WhoseFilesAreNoTasksAreRefusedBeforeTheFirstStep) {
  std::ofstream(folder_ / "bad.jsonl") << "{\"context\": \"a\"}\n";
  config_.evaluation.tasks = {folder_ / "bad.jsonl"};
  EXPECT_EQ(failure(2, config_, "bad.jsonl, line 1: expected {"), ErrorKind::kUsage);
  config_.evaluation.tasks = {folder_ / "quiz.jsonl", folder_ / "quiz.jsonl"};
  EXPECT_EQ(failure(2, config_, "found two of the name quiz"), ErrorKind::kUsage);
  config_.evaluation.tasks = {folder_ / "none.jsonl"};
  EXPECT_EQ(failure(2, config_, "none.jsonl"), ErrorKind::kIo);
}

}  // namespace
}  // namespace fsdp::train
