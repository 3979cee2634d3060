#include "run/train/progress.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <regex>
#include <sstream>
#include <string>
#include <thread>

#include "base/util/log.h"

namespace fsdp::train {
namespace {

const StepMetrics kStep{.step = 50,
                        .loss = 2.0,
                        .grad_norm = 0.75,
                        .lr = 1e-3,
                        .tokens = 1000,
                        .tokens_per_second = 12345.6,
                        .step_seconds = 0.5,
                        .peak_memory_bytes = 512 << 20,
                        .eta_seconds = 75};

/// The line of a terminal, without the characters that draw it over.
std::string drawn(int columns, const StepMetrics& metrics) {
  std::ostringstream out;
  Progress({&out, columns}, 200).show(metrics);
  const std::string text = out.str();
  return text.substr(3, text.size() - 4);
}

TEST(Progress, WritesPlainLinesWithoutATerminal) {
  std::ostringstream out;
  Progress progress({&out, 0}, 200);
  progress.show(kStep, {});
  progress.finish_line();
  EXPECT_EQ(out.str(),
            "step 50/200  loss 2.0000  ppl 7.39  ETA 1m15s  12,346 tok/s  norm 0.75  lr "
            "0.001000  512.0 MiB  data 0.0%\n");
}

TEST(Progress, ShowsUtilisationWaitsScaleAndSkippedSteps) {
  std::ostringstream out;
  StepMetrics metrics = kStep;
  metrics.mfu = 0.4321;
  metrics.data_wait_seconds = 0.01;
  metrics.loss_scale = 65536;
  metrics.skipped_steps = 3;
  Progress({&out, 0}, 200).show(metrics);
  EXPECT_NE(out.str().find("  mfu 43.2%  data 2.0%  scale 65536  skipped 3\n"), std::string::npos)
      << out.str();
  metrics.hfu = metrics.mfu;  // without recomputation
  Progress({&out, 0}, 200).show(metrics);
  EXPECT_EQ(out.str().find("hfu"), std::string::npos) << out.str();
  metrics.hfu = 0.5512;
  Progress({&out, 0}, 200).show(metrics);
  EXPECT_NE(out.str().find("  mfu 43.2%  hfu 55.1%  data 2.0%"), std::string::npos) << out.str();
}

TEST(Progress, DrawsOneLineOverAndOverOnATerminal) {
  std::ostringstream out;
  Progress progress({&out, 140}, 200);
  progress.show(kStep);
  std::string drawn = out.str();
  EXPECT_EQ(drawn.back(), '\r');
  EXPECT_EQ(drawn.find('\n'), std::string::npos);
  EXPECT_NE(drawn.find("[#"), std::string::npos);
  EXPECT_NE(drawn.find("12,346 tok/s"), std::string::npos);
  progress.finish_line();
  EXPECT_EQ(out.str().back(), '\n');
  size_t length = out.str().size();
  progress.finish_line();
  EXPECT_EQ(out.str().size(), length);
}

TEST(Progress, NeverDrawsALineThatWraps) {
  for (int columns = 1; columns < 150; ++columns) {
    EXPECT_LT(drawn(columns, kStep).size(), static_cast<size_t>(std::max(columns, 2)));
  }
}

TEST(Progress, LeavesOutWholeFieldsWhereALineIsTooNarrow) {
  StepMetrics metrics = kStep;
  metrics.mfu = 0.4321;
  EXPECT_EQ(drawn(60, metrics), "50/200 [###..........] loss 2.0000  ETA 1m15s  12,346 tok/s");
  EXPECT_EQ(drawn(80, metrics),
            "50/200 [##.......] loss 2.0000  ETA 1m15s  12,346 tok/s  norm 0.75  lr 0.001000");
  EXPECT_EQ(drawn(30, metrics), "50/200 loss 2.0000  ETA 1m15s");
  EXPECT_EQ(drawn(7, metrics), "50/200");
  EXPECT_EQ(drawn(6, metrics), "");
  // Whatever the width: what is shown are fields of the whole line.
  const std::string whole = drawn(500, metrics) + "  ";
  for (int columns = 7; columns < 150; ++columns) {
    const std::string line = drawn(columns, metrics);
    const size_t first = line.find("loss");
    if (first == std::string::npos) continue;
    std::string rest = line.substr(first) + "  ";
    for (size_t end = rest.find("  "); end != std::string::npos; end = rest.find("  ")) {
      EXPECT_NE(whole.find(rest.substr(0, end + 2)), std::string::npos) << line;
      rest.erase(0, end + 2);
    }
  }
}

TEST(Progress, ShowsSmallRatesWithTheirDigits) {
  StepMetrics metrics = kStep;
  const auto line_at = [&](double lr) {
    std::ostringstream out;
    metrics.lr = lr;
    Progress({&out, 0}, 200).show(metrics);
    return out.str();
  };
  EXPECT_NE(line_at(2e-5).find("  lr 2.0e-05  "), std::string::npos);
  EXPECT_NE(line_at(3e-4).find("  lr 0.000300  "), std::string::npos);
  EXPECT_NE(line_at(0).find("  lr 0.000000  "), std::string::npos);
}

TEST(Progress, DrawsWhatIsUnderWayBetweenStepsThatAreLogged) {
  using namespace std::chrono_literals;
  std::ostringstream out;
  Progress progress({&out, 100}, 200);
  const auto begin = Progress::Clock::now();
  progress.begin("step 1", 0, begin);
  progress.tick(begin + 12s);
  progress.finish_line();
  EXPECT_NE(out.str().find("\033[K0/200 [" + std::string(30, '.') + "] step 1 for 12s\r"), std::string::npos)
      << out.str();
  EXPECT_TRUE(out.str().ends_with("\033[K")) << "a tick is no line to keep";

  out.str("");
  progress.show(kStep, begin - 5s);
  progress.begin("step 60", 59, begin);
  progress.tick(begin);
  progress.tick(begin + 10s);
  progress.finish_line();
  const std::string text = out.str();
  EXPECT_NE(text.find("\033[K59/200 "), std::string::npos) << text;
  EXPECT_NE(text.find("] loss 2.0000  ETA 1m10s  "), std::string::npos)
      << "quick steps need no time: " << text;
  EXPECT_NE(text.find("] step 60 for 10s  loss 2.0000  ETA 1m00s  "), std::string::npos) << text;
  // What stays is the last step that was logged.
  EXPECT_NE(text.substr(text.rfind('\r')).find("50/200 "), std::string::npos) << text;

  out.str("");
  progress.tick(begin + 20s);
  EXPECT_EQ(out.str(), "") << "other output follows";
}

TEST(Progress, ShowsTheRemainingTimeBeforeTheFirstLine) {
  using namespace std::chrono_literals;
  const auto begin = Progress::Clock::now();
  std::ostringstream out;
  Progress terminal({&out, 100}, 200);
  terminal.begin("step 1", 0, begin);
  terminal.tick(begin + 1s);
  EXPECT_EQ(out.str().find("ETA"), std::string::npos) << "nothing is known yet";
  terminal.show_unlogged(1, 2.0, 398, /*next_line=*/50, begin + 2s);
  terminal.begin("step 2", 1, begin + 2s);
  terminal.tick(begin + 10s);
  EXPECT_NE(out.str().find("\033[K1/200 ["), std::string::npos) << out.str();
  EXPECT_NE(out.str().find("] step 2 for 8s  ETA 6m30s\r"), std::string::npos) << out.str();

  std::ostringstream lines;
  Progress plain({&lines, 0}, 200);
  plain.show_unlogged(1, 2.0, 398, /*next_line=*/50);
  plain.show_unlogged(2, 2.0, 396, /*next_line=*/50);
  EXPECT_EQ(lines.str(), "step 1/200  took 2.00s  ETA 6m38s  next line after step 50\n") << "once";
}

TEST(Progress, ShowsTheLossOfTheLastStepBesideTheMean) {
  std::ostringstream out;
  StepMetrics metrics = kStep;
  metrics.last_loss = 1.75;
  Progress({&out, 0}, 200).show(metrics);
  EXPECT_NE(out.str().find("  loss 2.0000  last 1.7500  ppl 7.39  "), std::string::npos) << out.str();
}

TEST(Progress, ShowsAPerplexityOfCrossEntropyAlone) {
  std::ostringstream out;
  StepMetrics metrics = kStep;
  metrics.is_cross_entropy = false;
  Progress({&out, 0}, 200).show(metrics);
  EXPECT_NE(out.str().find("  loss 2.0000  ETA "), std::string::npos) << out.str();
}

TEST(Progress, BeginsPlainLinesWithTheTimeWhereTheLogDoes) {
  util::set_log_times(true);
  std::ostringstream out;
  Progress({&out, 0}, 200).show(kStep);
  util::set_log_times(false);
  EXPECT_TRUE(std::regex_search(out.str(), std::regex("^\\d{4}-\\d\\d-\\d\\dT[0-9:.]{12}Z step 50/200 ")))
      << out.str();
}

TEST(Progress, DrawsNothingBetweenLinesWithoutATerminal) {
  std::ostringstream out;
  Progress progress({&out, 0}, 200);
  const auto begin = Progress::Clock::now();
  progress.begin("step 1", 0, begin);
  progress.tick(begin + std::chrono::seconds(12));
  EXPECT_EQ(out.str(), "");
}

TEST(Progress, TicksByItself) {
  std::ostringstream out;
  {
    Progress progress({&out, 100}, 200);
    progress.begin("step 1", 0, Progress::Clock::now() - std::chrono::seconds(30));
    std::this_thread::sleep_for(std::chrono::milliseconds(1300));
  }
  EXPECT_NE(out.str().find("step 1 for 3"), std::string::npos) << out.str();
}

TEST(Progress, RanksWithoutAStreamAreSilent) {
  for (const int columns : {0, 100}) {
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    {
      Progress progress({nullptr, columns}, 10);
      const auto begin = Progress::Clock::now();
      progress.begin("step 1", 0, begin);
      progress.tick(begin + std::chrono::seconds(12));
      progress.show(kStep);
      progress.finish_line();
    }
    EXPECT_EQ(::testing::internal::GetCapturedStdout(), "");
    EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  }
}

TEST(Progress, AsksTheLauncherForTheWidth) {
  setenv("FSDP_TERMINAL_COLUMNS", "77", 1);
  EXPECT_EQ(progress_on_stderr().columns, 77);
  unsetenv("FSDP_TERMINAL_COLUMNS");
}

}  // namespace
}  // namespace fsdp::train
