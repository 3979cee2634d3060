#include "tools/report/compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/util/error.h"
#include "setup/config/print.h"
#include "support/temporary_folder.h"

namespace fsdp::report {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::TemporaryFolder;

/// A run that did not take place.
struct MadeRun {
  unsigned seed = 1;
  int steps = 200, interval = 1;
  double loss_offset = 0;   ///< added to each loss
  double own_noise = 0.02;  ///< deviation of the run's own noise, whose neighbours are correlated by 0.5
  double tokens_per_second = 1000;
  int tokens_per_step = 64;

  std::string metrics() const {
    std::mt19937 samples(7), own(seed);  // the samples, and with them their losses, are the same in all runs
    std::normal_distribution<double> normal, normal_of_sample;
    std::string text;
    double noise = 0, sum = 0;
    for (int step = 1; step <= steps; ++step) {
      noise = 0.5 * noise + own_noise * normal(own);
      sum += 2 + 3 * std::exp(-step / 40.0) + 0.3 * normal_of_sample(samples) + noise + loss_offset;
      const double speed = tokens_per_second * std::exp(0.03 * normal(own));
      if (step % interval != 0) continue;
      text +=
          concat("{\"step\":", step, ",\"loss\":", util::printed("%.17g", sum / interval),
                 ",\"grad_norm\":1.5,\"tokens\":", step * tokens_per_step, ",\"tokens_per_second\":", speed,
                 ",\"step_seconds\":", tokens_per_step / speed, ",\"peak_memory_bytes\":1048576}\n");
      sum = 0;
    }
    return text;
  }
};

class CompareRuns : public ::testing::Test {
 protected:
  std::filesystem::path add(const std::string& name, const std::string& metrics,
                            const std::string& environment = "", const std::string& config = "") {
    const std::filesystem::path run = folder_ / name;
    std::filesystem::create_directories(run);
    folder_.write(name + "/metrics.jsonl", metrics);
    if (!environment.empty()) folder_.write(name + "/environment.json", environment);
    if (!config.empty()) folder_.write(name + "/config.toml", config);
    return run;
  }
  Comparison compare(const MadeRun& first, const MadeRun& second) {
    return report::compare_runs(read_run(add("first", first.metrics())),
                                read_run(add("second", second.metrics())));
  }
  Comparison compare(const std::string& first, const std::string& second) {
    return report::compare_runs(read_run(add("first", first)), read_run(add("second", second)));
  }

  TemporaryFolder folder_;
};

std::vector<std::string> codes_of(const Comparison& comparison) {
  std::vector<std::string> codes;
  for (const ComparisonNote& note : comparison.notes) codes.push_back(note.code);
  return codes;
}

using enum ComparisonVerdict;

TEST_F(CompareRuns, FindsNoDifferenceInNoise) {
  int losses = 0, speeds = 0;
  for (unsigned seed = 1; seed <= 100; ++seed) {
    const Comparison found = compare({.seed = 2 * seed}, {.seed = 2 * seed + 1});
    losses += found.training_loss.verdict == kNoDifference;
    speeds += found.speed.verdict == kNoDifference;
  }
  EXPECT_GE(losses, 95);
  EXPECT_GE(speeds, 95);
}

TEST_F(CompareRuns, FindsASmallEffectBecauseTheSamplesAreTheSame) {
  int better = 0, worse = 0;
  for (unsigned seed = 1; seed <= 100; ++seed) {
    // Small beside the deviation of the samples' losses, 0.3.
    better +=
        compare({.seed = 2 * seed}, {.seed = 2 * seed + 1, .loss_offset = -0.04}).training_loss.verdict ==
        kBetter;
    worse += compare({.seed = 2 * seed}, {.seed = 2 * seed + 1, .loss_offset = 0.04}).training_loss.verdict ==
             kWorse;
  }
  EXPECT_GE(better, 95);
  EXPECT_GE(worse, 95);
}

TEST_F(CompareRuns, MeasuresTheDifference) {
  const Comparison found = compare({.seed = 2}, {.seed = 3, .loss_offset = -0.1, .tokens_per_second = 1250});
  const LossComparison& loss = found.training_loss;
  EXPECT_EQ(loss.common_steps, 200);
  EXPECT_EQ(loss.compared_steps, 100);
  EXPECT_EQ(loss.first_compared_step, 101);
  EXPECT_EQ(loss.last_compared_step, 200);
  ASSERT_TRUE(loss.difference);
  EXPECT_NEAR(loss.difference->mean, -0.1, 0.03);
  EXPECT_NEAR((*loss.means)[1] - (*loss.means)[0], loss.difference->mean, 1e-9);
  EXPECT_NEAR(*loss.mean_difference_of_all, -0.1, 0.03);
  ASSERT_TRUE(found.speed.ratio);
  EXPECT_NEAR(*found.speed.ratio, 1.25, 0.05);
  EXPECT_LT(found.speed.low, *found.speed.ratio);
  EXPECT_GT(found.speed.high, *found.speed.ratio);
  EXPECT_EQ(found.speed.verdict, kBetter);
  EXPECT_EQ(found.runs[0].peak_memory_bytes, 1048576);
}

TEST_F(CompareRuns, KnowsTheSameBits) {
  EXPECT_EQ(compare({.seed = 5}, {.seed = 5}).training_loss.verdict, kSameBits);
  std::string other = MadeRun{.seed = 5}.metrics();
  other.replace(other.rfind("\"grad_norm\":1.5"), 15, "\"grad_norm\":1.6");
  EXPECT_EQ(compare(MadeRun{.seed = 5}.metrics(), other).training_loss.verdict, kNoDifference);
}

TEST_F(CompareRuns, ComparesTheSameStepsOfRunsThatLogAtOtherIntervals) {
  const Comparison found =
      compare({.seed = 4, .steps = 205, .interval = 1}, {.seed = 4, .steps = 205, .interval = 10});
  const LossComparison& loss = found.training_loss;
  EXPECT_EQ(loss.common_steps, 20);
  ASSERT_TRUE(loss.difference);
  EXPECT_NEAR(loss.difference->mean, 0, 1e-9);
  EXPECT_NEAR(*loss.mean_difference_of_all, 0, 1e-9);
  EXPECT_NE(loss.verdict, kBetter);
  EXPECT_NE(loss.verdict, kWorse);
}

TEST_F(CompareRuns, ComparesTheCommonStepsOfRunsOfDifferentLengths) {
  const Comparison found = compare({.seed = 2, .steps = 80}, {.seed = 3, .steps = 200, .loss_offset = -0.2});
  EXPECT_EQ(found.training_loss.common_steps, 80);
  EXPECT_EQ(found.training_loss.last_compared_step, 80);
  EXPECT_EQ(found.training_loss.verdict, kBetter);
  EXPECT_THAT(codes_of(found), Contains("lengths"));
}

TEST_F(CompareRuns, TakesTheLastLineOfAStepThatAResumedRunRepeated) {
  const std::string whole = MadeRun{.seed = 5}.metrics();
  const std::string killed = MadeRun{.seed = 6, .steps = 120, .loss_offset = 9}.metrics();
  EXPECT_EQ(compare(whole, killed + whole).training_loss.verdict, kSameBits);
}

TEST_F(CompareRuns, LeavesOutDamagedLines) {
  const std::string whole = MadeRun{.seed = 5}.metrics();
  const Comparison found = compare(whole, "\xff\xfe\n" + whole + "[1]\n{\"step\":9,\"lo");
  EXPECT_EQ(found.training_loss.verdict, kSameBits);
  EXPECT_EQ(found.runs[1].damaged_lines, 3);
  EXPECT_THAT(codes_of(found), Contains("damaged_lines"));
}

TEST_F(CompareRuns, RefusesAFileThatHasOnlyDamagedLines) {
  try {
    compare(MadeRun{}.metrics(), "<html>\nno metrics\n");
    FAIL() << "accepted";
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kData);
    EXPECT_THAT(error.what(), HasSubstr("none of its 2 lines can be read"));
  }
}

TEST_F(CompareRuns, HasNoVerdictOnRunsThatHaveLoggedNothing) {
  const Comparison found = compare(std::string(), MadeRun{}.metrics());
  EXPECT_EQ(found.training_loss.verdict, kUnknown);
  EXPECT_EQ(found.validation_loss.verdict, kUnknown);
  EXPECT_EQ(found.speed.verdict, kUnknown);
  EXPECT_THAT(codes_of(found), Contains("no_steps"));
  EXPECT_THAT(codes_of(found), Contains("too_few_steps"));
  EXPECT_THAT(comparison_text(found), HasSubstr("unknown"));
  EXPECT_NE(comparison_json(found), "");
  EXPECT_EQ(compare(std::string(), std::string()).training_loss.common_steps, 0);
}

TEST_F(CompareRuns, CountsLinesWithoutAFiniteLoss) {
  const std::string metrics = MadeRun{}.metrics();
  const Comparison found =
      compare(metrics, metrics + "{\"step\":201,\"loss\":null}\n{\"step\":202,\"loss\":null}\n");
  EXPECT_EQ(found.runs[1].nonfinite_losses, 2);
  EXPECT_THAT(codes_of(found), Contains("nonfinite_loss"));
  EXPECT_EQ(compare(metrics, "{\"step\":1,\"loss\":null}\n").runs[1].nonfinite_losses, 1);
}

TEST_F(CompareRuns, ComparesValidationsAtTheirCommonSteps) {
  const auto with_validations = [](double offset, int count) {
    std::string text = MadeRun{}.metrics();
    for (int i = 1; i <= count; ++i) {
      text += concat("{\"step\":", 10 * i, ",\"validation_loss\":",
                     2 + 1.0 / i + (i % 2 == 0 ? 0.001 : -0.001) * offset / 0.05 + offset, "}\n");
    }
    return text;
  };
  const Comparison found = compare(with_validations(0, 20), with_validations(-0.05, 20));
  EXPECT_EQ(found.validation_loss.verdict, kBetter);
  EXPECT_EQ(found.validation_loss.compared_steps, 10);
  EXPECT_EQ(found.runs[0].best_validation_loss->step, 200);
  const Comparison few = compare(with_validations(0, 4), with_validations(-0.05, 4));
  EXPECT_EQ(few.validation_loss.verdict, kUnknown);
  EXPECT_NEAR((*few.validation_loss.means)[1] - (*few.validation_loss.means)[0], -0.05, 1e-3);
  EXPECT_THAT(codes_of(few), Contains("too_few_validations"));
}

TEST_F(CompareRuns, SaysWhatMakesTheComparisonUnfair) {
  config::Config config;
  config.data.train = {"none.bin"};
  config.training.steps = 200;
  const std::string metrics = MadeRun{}.metrics();
  const std::string environment =
      R"({"fsdp":"1","host":"a","ranks":2,"cpu":"x","started":"yesterday","peak_tflops_a_rank":0.1})";
  const RunRecord first = read_run(add("one", metrics, environment, config::to_toml(config)));
  config.run.output_dir = "elsewhere";
  EXPECT_THAT(
      codes_of(compare_runs(first, read_run(add("same", metrics, environment, config::to_toml(config))))),
      ::testing::IsEmpty());
  config.run.seed = 77;
  config.data.train = {"other.bin"};
  config.training.steps = 400;
  const RunRecord second = read_run(
      add("two", MadeRun{.tokens_per_step = 128}.metrics(),
          R"({"fsdp":"2","host":"b","ranks":4,"cpu":"x","started":"today","peak_tflops_a_rank":0.2})",
          config::to_toml(config)));
  const Comparison found = compare_runs(first, second);
  for (const char* code :
       {"unfinished", "data", "seed", "processes", "hardware", "version", "tokens_per_step"}) {
    EXPECT_THAT(codes_of(found), Contains(code));
  }
  ASSERT_TRUE(found.config);
  std::vector<std::string> keys;
  for (const DifferingValue& value : *found.config) keys.push_back(value.name);
  EXPECT_EQ(keys, (std::vector<std::string>{"data.train", "run.seed", "training.steps"}));
  EXPECT_EQ(found.environment.size(), 3U);
  EXPECT_THAT(comparison_text(found), HasSubstr("training.steps: 200 -> 400"));
}

TEST_F(CompareRuns, GoesOnWithoutConfigs) {
  const Comparison found = compare({.seed = 1}, {.seed = 2});
  EXPECT_FALSE(found.config);
  EXPECT_THAT(codes_of(found), Contains("no_config"));
  EXPECT_THAT(codes_of(found), Contains("no_environment"));
}

TEST_F(CompareRuns, PrintsNumbersOfAnySize) {
  const std::string huge =
      "{\"step\":9223372036854775807,\"loss\":1e308,\"tokens\":1e308,\"tokens_per_second\":1e-300}\n"
      "{\"step\":-5,\"loss\":-1e308,\"skipped_steps\":1e300}\n";
  const Comparison found = compare(huge, huge + "{\"step\":3,\"loss\":-1e308}\n");
  EXPECT_NE(comparison_text(found), "");
  EXPECT_THAT(comparison_json(found), Not(HasSubstr(": inf")));
}

}  // namespace
}  // namespace fsdp::report
