#include "train/metrics.h"

#include <gtest/gtest.h>

#include <fstream>

#include "support/temporary_folder.h"
#include "support/tiny_config.h"
#include "util/error.h"

namespace fsdp::train {
namespace {

using testing::metrics_with;
using testing::TemporaryFolder;

TEST(MetricsFile, WritesOneObjectAStepWithTheAgreedKeys) {
  TemporaryFolder folder;
  MetricsFile file(folder.path(), 0);
  file.write({.step = 1,
              .loss = 2.5,
              .grad_norm = 0.5,
              .lr = 1e-3,
              .tokens = 64,
              .tokens_per_second = 10.0,
              .step_seconds = 6.4,
              .peak_memory_bytes = 1000,
              .minor_faults = 77,
              .mfu = 0.5});
  file.write_validation(1, {.loss = 2.25, .samples = 1, .tokens = 8, .bytes = 16});
  auto steps = metrics_with(file.path(), "loss");
  ASSERT_EQ(steps.size(), 1u);
  for (const char* key : {"step", "loss", "grad_norm", "lr", "tokens", "tokens_per_second", "step_seconds",
                          "peak_memory_bytes", "minor_faults", "mfu", "data_wait_seconds"}) {
    EXPECT_TRUE(steps[0].contains(key)) << key;
  }
  const nlohmann::json validation = metrics_with(file.path(), "validation_loss")[0];
  EXPECT_EQ(validation["validation_loss"], 2.25);
  EXPECT_NEAR(validation["validation_perplexity"].get<double>(), 9.4877, 1e-4);
  EXPECT_NEAR(validation["validation_bits_per_byte"].get<double>(), 1.6230, 1e-4);
}

TEST(MetricsFile, DropsStepsThatAreDoneAgainAndTornLines) {
  TemporaryFolder folder;
  {
    MetricsFile file(folder.path(), 0);
    for (int64_t step = 1; step <= 5; ++step) file.write({.step = step});
  }
  std::ofstream(folder / "metrics.jsonl", std::ios::app) << "{\"step\": 6, \"lo";
  MetricsFile resumed(folder.path(), 3);
  resumed.write({.step = 4});
  auto steps = metrics_with(resumed.path(), "step");
  ASSERT_EQ(steps.size(), 4u);
  EXPECT_EQ(steps.back()["step"], 4);
}

TEST(MetricsFile, PutsAnOlderRunAside) {
  TemporaryFolder folder;
  for (int run = 0; run < 3; ++run) MetricsFile(folder.path(), 0).write({.step = 1});
  EXPECT_EQ(metrics_with(folder / "metrics.jsonl", "step").size(), 1u);
  EXPECT_TRUE(std::filesystem::exists(folder / "metrics.1.jsonl"));
  EXPECT_TRUE(std::filesystem::exists(folder / "metrics.2.jsonl"));
}

TEST(MetricsFile, SaysWhenItCannotBeOpened) {
  EXPECT_THROW(MetricsFile("/proc/no-such-folder", 0), util::Error);
}

}  // namespace
}  // namespace fsdp::train
