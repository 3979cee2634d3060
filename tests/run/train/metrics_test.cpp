#include "run/train/metrics.h"

#include <gtest/gtest.h>

#include <fstream>
#include <regex>

#include "base/util/clock.h"
#include "base/util/error.h"
#include "base/util/file.h"
#include "support/temporary_folder.h"
#include "support/tiny_config.h"

namespace fsdp::train {
namespace {

using testing::metrics_with;
using testing::TemporaryFolder;

Validation with_loss(double loss) {
  Validation validation;
  validation.loss = loss;
  return validation;
}

TEST(MetricsFile, WritesOneObjectAStepWithTheAgreedKeys) {
  TemporaryFolder folder;
  MetricsFile file(folder.path(), {.resumed_step = 0});
  file.write({.step = 1,
              .loss = 2.5,
              .grad_norm = 0.5,
              .lr = 1e-3,
              .tokens = 64,
              .tokens_per_second = 10.0,
              .step_seconds = 6.4,
              .peak_memory_bytes = 1000,
              .minor_faults = 77,
              .mfu = 0.5,
              .hfu = 0.6,
              .peak_tflops = 2});
  file.write_validation(validation_line(1, {.loss = 2.25, .samples = 1, .tokens = 8, .bytes = 16}));
  file.finish();
  auto steps = metrics_with(file.path(), "loss");
  ASSERT_EQ(steps.size(), 1u);
  for (const char* key :
       {"step", "loss", "grad_norm", "lr", "tokens", "tokens_per_second", "step_seconds", "peak_memory_bytes",
        "minor_faults", "mfu", "hfu", "peak_tflops", "data_wait_seconds"}) {
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
    MetricsFile file(folder.path(), {.resumed_step = 0});
    for (int64_t step = 1; step <= 5; ++step) file.write({.step = step});
  }
  std::ofstream(folder / "metrics.jsonl", std::ios::app) << "{\"step\": 6, \"lo";
  MetricsFile resumed(folder.path(), {.resumed_step = 3});
  resumed.write({.step = 4});
  resumed.finish();
  auto steps = metrics_with(resumed.path(), "step");
  ASSERT_EQ(steps.size(), 4u);
  EXPECT_EQ(steps.back()["step"], 4);
}

std::vector<std::string> lines_of(const std::filesystem::path& path) {
  std::vector<std::string> lines;
  std::istringstream content(util::read_file(path));
  for (std::string line; std::getline(content, line);) lines.push_back(line);
  return lines;
}

// A run with replicas opens it again after each fault.
TEST(MetricsFile, OfALongRunIsNotCopiedToDropItsLastSteps) {
  TemporaryFolder folder;
  {
    MetricsFile file(folder.path(), {.resumed_step = 0});
    for (int64_t step = 1; step <= 500; ++step) file.write({.step = step});
  }
  const auto first_steps = [&](int64_t step) {
    const MetricsFile resumed(folder.path(), {.resumed_step = step});
    EXPECT_TRUE(resumed.ends_with(step, "loss"));
    EXPECT_FALSE(resumed.ends_with(step + 1, "loss"));
    const auto steps = metrics_with(resumed.path(), "loss");
    EXPECT_EQ(std::ssize(steps), step);
    EXPECT_EQ(steps.back()["step"], step);
  };
  std::filesystem::create_hard_link(folder / "metrics.jsonl", folder / "the same file");
  first_steps(498);
  EXPECT_TRUE(std::filesystem::equivalent(folder / "metrics.jsonl", folder / "the same file"));
  first_steps(10);  // the last lines do not tell where those end
}

/// The row of a table without its last column, which is the time of writing in quotes.
std::string without_time(const std::string& row) {
  EXPECT_TRUE(std::regex_search(row, std::regex(R"(,"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"$)"))) << row;
  return row.substr(0, row.rfind(','));
}

TEST(MetricsFile, WritesWhenEachLineWasWritten) {
  TemporaryFolder folder;
  MetricsFile file(folder.path(), {});
  const std::string before = util::utc_text();
  file.write({.step = 1, .loss = 2.5});
  file.write_validation(validation_line(1, with_loss(2.0)));
  file.finish();
  for (const std::string& line : lines_of(file.path())) {
    EXPECT_TRUE(line.starts_with("{\"step\":1,\"time\":\"")) << line;
    const auto time = nlohmann::json::parse(line).at("time").get<std::string>();
    EXPECT_GE(time, before);
    EXPECT_LE(time, util::utc_text());
  }
}

TEST(MetricsFile, HasTheLossOfTheLastStepBesideAMeanAndTheRemainingTime) {
  TemporaryFolder folder;
  MetricsFile file(folder.path(), {});
  file.write({.step = 1, .loss = 2.5});
  file.write({.step = 2, .loss = 2.5, .last_loss = 2.25, .eta_seconds = 12.5});
  file.finish();
  const auto lines = metrics_with(file.path(), "loss");
  EXPECT_FALSE(lines[0].contains("last_loss"));
  EXPECT_EQ(lines[1].at("last_loss"), 2.25);
  EXPECT_EQ(lines[1].at("eta_seconds"), 12.5);
}

TEST(MetricsFile, WritesTheSameNumbersAsATable) {
  TemporaryFolder folder;
  {
    MetricsFile file(folder.path(), {.resumed_step = 0}, {.csv = true});
    for (int64_t step = 1; step <= 4; ++step) file.write({.step = step, .loss = 2.5, .mfu = 0.25});
    file.write_validation(validation_line(4, with_loss(2.0)));
  }
  std::ofstream(folder / "metrics.csv", std::ios::app) << "12";  // torn, where 12 was not all of it
  MetricsFile resumed(folder.path(), {.resumed_step = 3}, {.csv = true});
  resumed.write_validation(validation_line(4, with_loss(0.0)));
  resumed.finish();
  auto lines = lines_of(folder / "metrics.csv");
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_TRUE(lines[0].starts_with("step,loss,grad_norm,lr,tokens,tokens_per_second,")) << lines[0];
  EXPECT_TRUE(lines[0].ends_with(",last_loss,eta_seconds,time")) << lines[0];
  EXPECT_EQ(without_time(lines[3]), "3,2.5,0.0,0.0,0,0.0,0.0,0,0,0.0,0.25,,,,,,,,,,,,,,,,,");
  EXPECT_EQ(without_time(lines[4]), "4,,,,,,,,,,,,,0.0,1.0,,,,,,,,,,,,,");
}

TEST(MetricsFile, DropsTheValidationThatTheRunBeginsWith) {
  TemporaryFolder folder;
  {
    MetricsFile file(folder.path(), {}, {.csv = true});
    for (int64_t step : {1, 2}) {
      file.write({.step = step});
      file.write_validation(
          validation_line(step, {.loss = 1, .samples = 1, .tokens = 1, .bytes = std::nullopt}));
    }
  }
  MetricsFile(folder.path(), {.resumed_step = 2}, {.csv = true});
  EXPECT_EQ(lines_of(folder / "metrics.jsonl").size(), 4u);
  EXPECT_EQ(lines_of(folder / "metrics.csv").size(), 5u);
  MetricsFile(folder.path(), {.resumed_step = 2, .validates_again = true}, {.csv = true});
  EXPECT_EQ(metrics_with(folder / "metrics.jsonl", "validation_loss").size(), 1u);
  EXPECT_EQ(lines_of(folder / "metrics.jsonl").size(), 3u);
  EXPECT_EQ(lines_of(folder / "metrics.csv").size(), 4u);
}

TEST(MetricsFile, HasTheMemoryOfAGpuWhereThereIsOne) {
  TemporaryFolder folder;
  MetricsFile file(folder.path(), {.resumed_step = 0}, {.csv = true});
  file.write({.step = 1});
  util::CudaMemory memory;
  memory.peak_allocated_bytes = 5;
  memory.peak_reserved_bytes = 7;
  memory.retries = 2;
  file.write({.step = 2, .gpu = memory});
  file.finish();
  const auto lines = lines_of(file.path());
  EXPECT_EQ(lines[0].find("gpu"), std::string::npos);
  EXPECT_NE(lines[1].find(
                "\"gpu_peak_allocated_bytes\":5,\"gpu_peak_reserved_bytes\":7,\"gpu_allocator_retries\":2"),
            std::string::npos)
      << lines[1];
  EXPECT_TRUE(without_time(lines_of(folder / "metrics.csv")[2]).ends_with(",5,7,2,,,,,,,,,"));
}

TEST(MetricsFile, HasTheSlowestRankWhereRanksAreCompared) {
  TemporaryFolder folder;
  MetricsFile file(folder.path(), {.resumed_step = 0}, {.csv = true});
  file.write({.step = 1});
  const RankFactor slowest{.rank = 3, .host = "node-b", .factor = 2.5};
  file.write({.step = 2, .slowest = slowest});
  file.write({.step = 3, .slowest = slowest, .slow = slowest});
  file.finish();
  const auto lines = lines_of(file.path()), rows = lines_of(folder / "metrics.csv");
  EXPECT_EQ(lines[0].find("slow"), std::string::npos);
  EXPECT_TRUE(lines[1].ends_with("\"slowest_rank\":3,\"slowest_rank_factor\":2.5}")) << lines[1];
  EXPECT_TRUE(lines[2].ends_with("\"slow_rank\":3,\"slow_rank_factor\":2.5,\"slow_rank_host\":\"node-b\"}"))
      << lines[2];
  EXPECT_TRUE(without_time(rows[2]).ends_with(",3,2.5,,,,")) << rows[2];
  EXPECT_TRUE(without_time(rows[3]).ends_with(",3,2.5,3,2.5,,")) << rows[3];
}

TEST(MetricsFile, PutsAnOlderTableAndOneWithOtherColumnsAside) {
  TemporaryFolder folder;
  MetricsFile(folder.path(), {.resumed_step = 0}, {.csv = true}).write({.step = 1});
  MetricsFile(folder.path(), {.resumed_step = 0}, {.csv = true}).write({.step = 1});
  EXPECT_EQ(lines_of(folder / "metrics.1.csv").size(), 2u);
  std::ofstream(folder / "metrics.csv") << "step,other\n1,2\n";
  MetricsFile(folder.path(), {.resumed_step = 1}, {.csv = true}).write({.step = 2});
  EXPECT_EQ(lines_of(folder / "metrics.2.csv")[1], "1,2");
  EXPECT_EQ(lines_of(folder / "metrics.csv").size(), 2u);
}

TEST(MetricsFile, PutsAnOlderRunAside) {
  TemporaryFolder folder;
  for (int run = 0; run < 3; ++run) MetricsFile(folder.path(), {.resumed_step = 0}).write({.step = 1});
  EXPECT_EQ(metrics_with(folder / "metrics.jsonl", "step").size(), 1u);
  EXPECT_TRUE(std::filesystem::exists(folder / "metrics.1.jsonl"));
  EXPECT_TRUE(std::filesystem::exists(folder / "metrics.2.jsonl"));
}

TEST(MetricsFile, SaysWhenItCannotBeOpened) {
  EXPECT_THROW(MetricsFile("/proc/no-such-folder", {}), util::Error);
}

}  // namespace
}  // namespace fsdp::train
