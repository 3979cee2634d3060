#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "base/util/error.h"
#include "base/util/file.h"
#include "base/util/system.h"
#include "base/util/text.h"
#include "setup/config/print.h"
#include "support/temporary_folder.h"
#include "tools/report/watch_view.h"
#include "tools/report/watched_run.h"

namespace fsdp::report {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using testing::TemporaryFolder;

std::string metrics_line(int step, double loss) {
  return concat("{\"step\":", step, ",\"loss\":", loss,
                ",\"grad_norm\":1.5,\"lr\":0.001,\"tokens_per_second\":1234.0,\"step_seconds\":2.0,"
                "\"peak_memory_bytes\":1048576}\n");
}

std::string joined(const std::vector<std::string>& lines) { return util::join(lines, "\n"); }

size_t columns(const std::string& line) {
  return static_cast<size_t>(
      std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

/// A run of 100 steps, of which 40 are logged.
WatchedState state_of_a_run() {
  WatchedState state;
  state.has_metrics = true;
  state.total_steps = 100;
  state.world_size = 2;
  state.run.folder = "runs/first";
  for (int step = 1; step <= 40; ++step) add_metrics(metrics_line(step, 5.0 - 0.05 * step), state.run);
  add_metrics("{\"step\":30,\"validation_loss\":3.75}", state.run);
  state.ranks = {{.rank = 0, .pid = 10, .state = 'R', .cpu_share = 0.97, .resident_bytes = 3 << 20},
                 {.rank = 1, .pid = 11, .state = 'T', .cpu_share = 0.0, .resident_bytes = 2 << 20}};
  state.events = {{20, "saved step-00000020"}, {30, "validation loss 3.7500, the best so far"}};
  return state;
}

TEST(WatchView, ShowsProgressNumbersCurveProcessesAndEvents) {
  const auto lines = watch_view(state_of_a_run(), 100, 24);
  const std::string text = joined(lines);
  EXPECT_THAT(text, HasSubstr("runs/first: running"));
  EXPECT_THAT(text, HasSubstr("step 40/100 "));
  EXPECT_THAT(text, HasSubstr(" 40%   ETA 2m00s"));
  EXPECT_THAT(text, HasSubstr("loss 3.0000   validation 3.7500 at step 30   1,234 tokens/s   2 s/step"));
  EXPECT_THAT(text, HasSubstr("norm 1.50   lr 0.001\npeak 1.0 MiB"));
  EXPECT_THAT(text, HasSubstr("4.950 │"));
  EXPECT_THAT(text, HasSubstr("3.000 │"));
  EXPECT_THAT(text, HasSubstr("rank 0 97% CPU 3.0 MiB   rank 1 0% CPU 2.0 MiB STOPPED"));
  EXPECT_EQ(lines.back(), "step 30: validation loss 3.7500, the best so far");
  EXPECT_THAT(lines, SizeIs(24));
}

TEST(WatchView, ShowsHfuWhereItIsNotMfu) {
  WatchedState state = state_of_a_run();
  add_metrics("{\"step\":41,\"loss\":3,\"mfu\":0.25,\"hfu\":0.25}", state.run);
  EXPECT_THAT(joined(watch_view(state, 100, 24)), HasSubstr("mfu 25.0%"));
  EXPECT_THAT(joined(watch_view(state, 100, 24)), Not(HasSubstr("hfu")));
  add_metrics("{\"step\":42,\"loss\":3,\"mfu\":0.25,\"hfu\":0.3125}", state.run);
  EXPECT_THAT(joined(watch_view(state, 100, 24)), HasSubstr("mfu 25.0%   hfu 31.2%"));
}

TEST(WatchView, NamesASlowRankWhileItIsSlow) {
  WatchedState state = state_of_a_run();
  add_metrics(
      "{\"step\":41,\"loss\":3,\"slow_rank\":3,\"slow_rank_factor\":2.5,\"slow_rank_host\":\"node-b\"}",
      state.run);
  EXPECT_THAT(joined(watch_view(state, 100, 24)),
              HasSubstr("slow: rank 3 on node-b   2.50 times the others' time"));
  add_metrics("{\"step\":42,\"loss\":3}", state.run);
  EXPECT_THAT(joined(watch_view(state, 100, 24)), Not(HasSubstr("slow:")));
}

TEST(WatchView, FitsIntoAnyTerminal) {
  for (int width = 1; width < 130; width += 7) {
    for (int height = 0; height < 40; height += 3) {
      const auto lines = watch_view(state_of_a_run(), width, height);
      EXPECT_LE(static_cast<int>(lines.size()), height);
      for (const std::string& line : lines) EXPECT_LE(columns(line), static_cast<size_t>(width)) << line;
    }
  }
}

TEST(WatchView, KeepsTheCurveLongerThanEvents) {
  const std::string text = joined(watch_view(state_of_a_run(), 80, 9));
  EXPECT_THAT(text, HasSubstr("│"));
  EXPECT_THAT(text, Not(HasSubstr("saved step-00000020")));
}

TEST(WatchView, SumsUpManyProcesses) {
  WatchedState state = state_of_a_run();
  state.world_size = 64;
  state.ranks.clear();
  for (int64_t rank = 0; rank < 32; ++rank) {
    state.ranks.push_back(
        {.rank = rank, .state = 'R', .cpu_share = rank == 7 ? 0.25 : 0.9, .resident_bytes = 1024});
  }
  EXPECT_THAT(
      joined(watch_view(state, 120, 24)),
      HasSubstr(
          "ranks: CPU 25% (rank 7) to 90%, memory 1.0 KiB to 1.0 KiB (32 of 64 ranks are on this host)"));
}

TEST(WatchView, ReportsWhenLinesStop) {
  WatchedState state = state_of_a_run();
  state.seconds_since_line = 95;
  EXPECT_THAT(watch_view(state, 100, 24).front(), HasSubstr("last line 1m35s ago (usually one in 2s)"));
}

TEST(WatchView, SaysWhatItWaitsFor) {
  EXPECT_THAT(joined(watch_view({}, 80, 24)), HasSubstr("waiting for metrics.jsonl"));
}

TEST(BrailleCurve, HasTwoByFourDotsACharacter) {
  EXPECT_THAT(braille_curve({{0, 0}, {3, 3}}, {}, 2, 1), ::testing::ElementsAre("⡠⠊"));
  EXPECT_THAT(braille_curve({{0, 0}, {3, 3}}, {{0, 3}}, 2, 1), ::testing::ElementsAre("o⠊"));
  EXPECT_THAT(braille_curve({{0, 1}, {1, 1}}, {}, 2, 2), ::testing::ElementsAre("⣀⣀", "  "));
}

class WatchedRunOf : public ::testing::Test {
 protected:
  WatchedRunOf() {
    config::Config config;
    config.data.train = {"none.bin"};
    config.training.steps = 5;
    std::ofstream(folder_ / "config.toml") << config::to_toml(config);
    std::ofstream(folder_ / "environment.json") << "{\"ranks\":2,\"host\":\"" << util::host_name() << "\"}";
  }
  void append(const std::string& text) { std::ofstream(folder_ / "metrics.jsonl", std::ios::app) << text; }

  TemporaryFolder folder_;
  WatchedRun run_{folder_.path()};
};

TEST_F(WatchedRunOf, ReadsLinesAsTheyAreCompleted) {
  EXPECT_FALSE(run_.poll().has_metrics);
  append(metrics_line(1, 5) + "{\"step\":2,\"lo");
  EXPECT_EQ(run_.poll().step(), 1);
  append("ss\":4.5}\n");
  const WatchedState& state = run_.poll();
  EXPECT_EQ(state.step(), 2);
  EXPECT_EQ(state.total_steps, 5);
  EXPECT_EQ(state.world_size, 2);
  EXPECT_EQ(state.run.skipped_lines, 0);
}

TEST_F(WatchedRunOf, StartsAgainWithAFileThatWasReplaced) {
  append(metrics_line(1, 5) + metrics_line(2, 4) + metrics_line(3, 3));
  EXPECT_EQ(run_.poll().step(), 3);
  util::write_file_atomically(folder_ / "metrics.jsonl", metrics_line(1, 5) + metrics_line(2, 4.25));
  const WatchedState& state = run_.poll();
  EXPECT_EQ(state.run.values("loss").size(), 2u);
  EXPECT_EQ(state.run.values("loss").back().y, 4.25);
  EXPECT_EQ(state.events.front().text, "the file was started again, after step 3");
}

TEST_F(WatchedRunOf, DropsWhatIsTrainedAgain) {
  append(metrics_line(1, 5) + metrics_line(2, 4) + metrics_line(3, 3) + metrics_line(2, 4.5));
  const WatchedState& state = run_.poll();
  EXPECT_EQ(state.step(), 2);
  EXPECT_EQ(state.run.values("loss").size(), 2u);
  EXPECT_THAT(state.events, Contains(::testing::Field(&RunEvent::text, "went back to step 2")));
}

TEST_F(WatchedRunOf, TellsOfValidationsAndCheckpoints) {
  append(metrics_line(2, 4) + "{\"step\":2,\"validation_loss\":4.5}\n" + metrics_line(4, 3) +
         "{\"step\":4,\"validation_loss\":4.75}\n");
  std::filesystem::create_directory(folder_ / "step-00000004");  // not complete
  std::filesystem::create_directory(folder_ / "step-00000002");
  std::ofstream(folder_ / "step-00000002/manifest.json") << "{}";
  std::string events;
  for (const RunEvent& event : run_.poll().events) events += concat(event.step, " ", event.text, "; ");
  EXPECT_EQ(events,
            "2 validation loss 4.5000, the best so far; 2 saved step-00000002; 4 validation loss 4.7500; ");
}

TEST_F(WatchedRunOf, EndsWithItsLastStep) {
  append(metrics_line(4, 4));
  EXPECT_FALSE(run_.poll().ended) << "its launcher may restart it";
  append(metrics_line(5, 3.5));
  EXPECT_TRUE(run_.poll().ended);
  EXPECT_THAT(last_line(run_.poll()), HasSubstr(": finished, step 5 of 5, loss 3.5000"));
}

TEST_F(WatchedRunOf, FindsTheProcessThatWritesItsMetrics) {
  std::ofstream mine(folder_ / "metrics.jsonl");
  mine << metrics_line(5, 4) << std::flush;
  const WatchedState& state = run_.poll();
  ASSERT_THAT(state.ranks, SizeIs(1));
  EXPECT_EQ(state.ranks.front().pid, ::getpid());
  EXPECT_GT(state.ranks.front().resident_bytes, 0);
  EXPECT_FALSE(state.ended) << "it is still there";
  mine.close();
  EXPECT_THAT(run_.poll().ranks, IsEmpty());
  EXPECT_TRUE(run_.poll().ended);
}

}  // namespace
}  // namespace fsdp::report
