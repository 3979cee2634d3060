#include "train/progress.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <sstream>

namespace fsdp::train {
namespace {

const StepMetrics kStep{.step = 50,
                        .loss = 2.0,
                        .grad_norm = 0.75,
                        .lr = 1e-3,
                        .tokens = 1000,
                        .tokens_per_second = 12345.6,
                        .step_seconds = 0.5,
                        .peak_memory_bytes = 512 << 20};

TEST(Progress, WritesPlainLinesWhereThereIsNoTerminal) {
  std::ostringstream out;
  Progress progress({&out, 0}, 200);
  progress.show(kStep);
  progress.finish_line();
  EXPECT_EQ(out.str(),
            "step 50/200  loss 2.0000  ppl 7.39  norm 0.75  lr 0.001000  12,346 tok/s  512.0 MiB  ETA 1m15s  "
            "data 0.0%\n");
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
  for (int columns : {1, 10, 40, 80, 120}) {
    std::ostringstream out;
    Progress({&out, columns}, 200).show(kStep);
    std::string line = out.str().substr(3);  // after the escape that clears the line
    EXPECT_LE(line.size(), static_cast<size_t>(std::max(columns, 2)));
  }
}

TEST(Progress, RanksWithoutAStreamAreSilent) {
  Progress progress({}, 10);
  progress.show(kStep);
  progress.finish_line();
}

TEST(Progress, AsksTheLauncherForTheWidth) {
  setenv("FSDP_TERMINAL_COLUMNS", "77", 1);
  EXPECT_EQ(progress_on_stderr().columns, 77);
  unsetenv("FSDP_TERMINAL_COLUMNS");
}

}  // namespace
}  // namespace fsdp::train
