#include "run/train/step_timeline.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "comm/threads/thread_communicator.h"
#include "model/nn/recompute.h"
#include "shard/engine/fully_shard.h"
#include "support/sharded_run.h"

namespace fsdp::train {
namespace {

using comm::TraceEvent;

TraceEvent collective(const std::string& op, const std::string& unit, double issue_us, double done_us) {
  return {.step = 2,
          .op = op,
          .unit = unit,
          .pass_or_event = "forward",
          .bytes = 1024,
          .issue_us = issue_us,
          .start_us = issue_us,
          .done_us = done_us};
}

TraceEvent waited_for(TraceEvent event, double wait_us) {
  event.wait_us = wait_us;
  return event;
}

TraceEvent buffer(bool allocated, const std::string& unit, double at_us,
                  const std::string& kind = "parameters") {
  return {.step = 2,
          .op = "buffer",
          .unit = unit,
          .pass_or_event = allocated ? "allocate" : "free",
          .bytes = 2048,
          .issue_us = at_us,
          .buffer_kind = kind};
}

TraceEvent forward(const std::string& unit, double begin_us, double end_us) {
  return {.step = 2,
          .op = "compute",
          .unit = unit,
          .pass_or_event = "forward",
          .issue_us = begin_us,
          .start_us = begin_us,
          .done_us = end_us};
}

std::string what_of(const std::vector<TimelineLine>& events) {
  std::string text;
  for (const auto& event : events) text += event.unit + " " + event.what + "; ";
  return text;
}

const TimelineLine& find(const std::vector<TimelineLine>& events, const std::string& what) {
  return *std::find_if(events.begin(), events.end(), [&](const auto& event) { return event.what == what; });
}

TEST(StepTimeline, PutsCollectivesComputeAndFreesInTheOrderOfTime) {
  StepRecord step{.begin_us = 1000,
                  .end_us = 9000,
                  .events = {buffer(true, "a", 1500), collective("all_gather", "a", 1000, 3000),
                             buffer(false, "a", 6000), forward("a", 4000, 5500)}};
  auto events = timeline_of(step);
  EXPECT_EQ(what_of(events), "a gather issued; a gathered; a forward; a freed; step ends; ");
  EXPECT_EQ(find(events, "forward").detail, "1.50 ms");
}

TEST(StepTimeline, CountsWhatIsLiveAfterEachEvent) {
  StepRecord step{
      .end_us = 9000,
      .events = {collective("all_gather", "a", 1000, 3000), buffer(true, "a", 2000),
                 buffer(true, "a", 4500, "gradients"), buffer(false, "a", 6000), forward("a", 5000, 5500)}};
  auto events = timeline_of(step);
  EXPECT_EQ(find(events, "gather issued").live_bytes, 0);
  EXPECT_EQ(find(events, "gathered").live_bytes, 2048);
  EXPECT_EQ(find(events, "forward").live_bytes, 4096);
  EXPECT_EQ(find(events, "freed").live_bytes, 2048);
}

TEST(StepTimeline, DistinguishesWaitingFromHiddenTime) {
  StepRecord step{.events = {waited_for(collective("all_gather", "late", 1000, 3000), 1500),
                             waited_for(collective("reduce_scatter", "early", 4000, 6000), 7000)}};
  auto events = timeline_of(step);
  EXPECT_EQ(find(events, "gathered").detail, "2.00 ms, waited 1.50 ms");
  EXPECT_EQ(find(events, "reduced").detail, "2.00 ms, hidden");
  CommunicationTime time = communication_time(step);
  EXPECT_EQ(time.total_us, 4000);
  EXPECT_EQ(time.exposed_us, 1500);
}

/// A root around ten units, once a micro-batch.
StepRecord step_of(int micro_batches) {
  StepRecord step;
  double now = 0;
  for (int micro = 0; micro < micro_batches; ++micro) {
    step.events.push_back(collective("all_gather", "root", now, now + 1));
    step.events.push_back(forward("root", now + 2, now + 50));
    for (int i = 0; i < 10; ++i) {
      std::string unit = "layer" + std::to_string(i);
      step.events.push_back(collective("all_gather", unit, now + 3, now + 4));
      step.events.push_back(forward(unit, now + 5, now + 6));
      now += 4;
    }
    now += 100;
  }
  step.end_us = now;
  return step;
}

TimelineLimits limits(size_t most_lines) {
  TimelineLimits limits{.units = {"root"}, .most_lines = most_lines};
  for (int i = 0; i < 10; ++i) limits.units.push_back("layer" + std::to_string(i));
  return limits;
}

TEST(StepTimeline, LeavesOutUnitsInTheMiddleAndSaysWhich) {
  // 3 lines of the root, 3 a unit, one of the end, and a heading and a note around them.
  std::string text = timeline_text(step_of(1), limits(20));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3 + 4 * 3 + 1 + 2);
  EXPECT_NE(text.find(" layer1 "), std::string::npos) << text;
  EXPECT_NE(text.find(" layer8 "), std::string::npos) << text;
  EXPECT_NE(text.find("not shown: the units from layer2 to layer7 "), std::string::npos) << text;
}

TEST(StepTimeline, ShowsTheLastMicroBatchFromItsFirstGatherOn) {
  std::string text = timeline_text(step_of(3), limits(40));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3 + 10 * 3 + 1 + 2) << text;
  EXPECT_NE(text.find("not shown: micro-batches 1 to 2 of 3 "), std::string::npos) << text;
}

TEST(StepTimeline, ShowsEverythingWithinTheLimitAndWithoutOne) {
  std::string whole = timeline_text(step_of(3), limits(0));
  EXPECT_EQ(std::count(whole.begin(), whole.end(), '\n'), 3 * (3 + 10 * 3) + 1 + 1);
  EXPECT_EQ(timeline_text(step_of(3), limits(100)), whole);
}

/// The events of a second step on two ranks, as rank 0 saw them.
std::vector<comm::TraceEvent> spans_of_a_step(const nn::CheckpointingOptions& checkpointing = {}) {
  std::vector<comm::TraceEvent> spans;
  comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
    auto model = testing::make_initialized(testing::tiny_options());
    shard::ShardOptions options;
    options.min_num_params = 1176;
    auto engine = shard::fully_shard(*model, options, testing::borrowed(communicator));
    nn::apply_checkpointing(*model, checkpointing);
    auto trace = std::make_shared<comm::Trace>();
    record_compute(*model, *engine, trace);
    for (int step = 1; step <= 2; ++step) {
      trace->begin_step(step);
      testing::loss_of(*model, testing::token_rows(0, 2, 9, 17)).backward();
    }
    if (communicator.rank() == 0) spans = trace->events(2);
  });
  return spans;
}

std::vector<std::string> units_of(const std::vector<comm::TraceEvent>& spans, const std::string& pass) {
  std::vector<std::string> units;
  for (const auto& span : spans) {
    if (span.pass_or_event == pass) units.push_back(span.unit);
  }
  return units;
}

using Names = std::vector<std::string>;

TEST(ComputeRecorder, SeesForwardInOrderAndBackwardInReverse) {
  auto spans = spans_of_a_step();
  EXPECT_EQ(units_of(spans, "forward"),
            (Names{"root", "model.layers.0", "model.layers.1", "model.layers.2"}));
  EXPECT_EQ(units_of(spans, "backward"),
            (Names{"root", "model.layers.2", "model.layers.1", "model.layers.0"}));
  EXPECT_TRUE(units_of(spans, "recompute").empty());
}

TEST(ComputeRecorder, UnitsComputeOneAfterAnotherInsideTheRoot) {
  auto spans = spans_of_a_step();
  ASSERT_EQ(spans.size(), 8u);
  const comm::TraceEvent& root = spans.front();
  for (size_t i = 1; i < 4; ++i) {
    EXPECT_GE(spans[i].begin_us(), i == 1 ? root.begin_us() : *spans[i - 1].done_us);
    EXPECT_LE(*spans[i].done_us, *root.done_us);
  }
  EXPECT_FALSE(spans[4].done_us.has_value()) << "token ids have no gradient, so nothing ends the root";
  for (size_t i = 6; i < 8; ++i) EXPECT_GE(spans[i].begin_us(), *spans[i - 1].done_us);
}

TEST(ComputeRecorder, DistinguishesRecomputationFromForward) {
  auto spans = spans_of_a_step({.mode = "full"});
  EXPECT_EQ(units_of(spans, "forward").size(), 4u);
  Names backwards = {"model.layers.2", "model.layers.1", "model.layers.0"};
  EXPECT_EQ(units_of(spans, "recompute"), backwards);
  backwards.insert(backwards.begin(), "root");
  EXPECT_EQ(units_of(spans, "backward"), backwards);
}

}  // namespace
}  // namespace fsdp::train
