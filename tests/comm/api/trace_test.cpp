#include "comm/api/trace.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <future>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>

#include "base/util/error.h"
#include "comm/api/communicator.h"
#include "comm/threads/thread_communicator.h"
#include "support/forwarding_communicator.h"
#include "support/temporary_folder.h"

namespace fsdp::comm {
namespace {

std::vector<nlohmann::json> lines_of(const testing::TemporaryFolder& folder, const std::string& name) {
  std::vector<nlohmann::json> lines;
  std::istringstream text(folder.read(name));
  for (std::string line; std::getline(text, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

TEST(Trace, WritesCollectivesInIssueOrderWithPayloadAndTimes) {
  testing::TemporaryFolder folder;
  auto trace = std::make_shared<Trace>();
  auto communicator = make_tracing_communicator(std::make_shared<SingleCommunicator>(), trace);
  trace->begin_step(3);
  at::Tensor four = at::ones({4}), out = at::empty({4});
  auto gather = communicator->all_gather(out, four, {.unit = "a", .pass = "forward"});
  auto reduce = communicator->reduce_scatter(out, four, {.unit = "b", .pass = "backward"});
  trace->open(folder / "trace.jsonl");  // what came before is kept
  reduce->wait();
  trace->buffer(true, "b", "gradients", 128);
  EXPECT_TRUE(lines_of(folder, "trace.jsonl").empty()) << "a line waits for the collectives issued before it";
  gather->wait();
  communicator->all_reduce(four, ReduceOp::kSum, {.unit = "norm", .pass = "optimizer"})->wait();
  communicator->broadcast(four.narrow(0, 0, 1), 0, {.unit = "x"})->wait();
  communicator->shift(out.narrow(0, 0, 2), four.narrow(0, 0, 2), {.unit = "keys"})->wait();
  trace->begin_step(4);  // a file can be read up to the step under way

  auto lines = lines_of(folder, "trace.jsonl");
  ASSERT_EQ(lines.size(), 6u);
  std::vector<std::string> ops;
  for (const auto& line : lines) {
    ops.push_back(line["op"]);
    EXPECT_EQ(line["step"], 3);
  }
  EXPECT_EQ(ops, (std::vector<std::string>{"all_gather", "reduce_scatter", "buffer", "all_reduce",
                                           "broadcast", "shift"}));
  EXPECT_EQ(lines[0]["unit"], "a");
  EXPECT_EQ(lines[0]["pass"], "forward");
  EXPECT_EQ(lines[0]["bytes"], 16);
  EXPECT_LE(lines[0]["issue_us"], lines[0]["start_us"]);
  EXPECT_LE(lines[0]["start_us"], lines[0]["done_us"]);
  EXPECT_LE(lines[0]["done_us"], lines[0]["wait_us"]) << "a world of one is done at the call";
  EXPECT_EQ(lines[2]["event"], "allocate");
  EXPECT_EQ(lines[2]["kind"], "gradients");
  EXPECT_EQ(lines[2]["bytes"], 128);
  EXPECT_GE(lines[2]["at_us"], lines[1]["issue_us"]);
  EXPECT_LE(lines[2]["at_us"], lines[3]["issue_us"]);
  EXPECT_EQ(lines[4]["bytes"], 4);
  EXPECT_EQ(lines[5]["bytes"], 8);
}

TEST(Trace, KeepsTheEventsOfAStepInMemory) {
  Trace trace;
  trace.begin_step(1);
  trace.buffer(true, "early", "parameters", 4);
  trace.begin_step(2);
  uint64_t gather = trace.issued("all_gather", {.unit = "a", .pass = "forward"}, 8);
  trace.buffer(true, "a", "parameters", 16);
  trace.finished(gather);
  auto events = trace.events(2);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].op, "all_gather");
  EXPECT_EQ(events[0].bytes, 8);
  EXPECT_TRUE(events[0].done_us.has_value());
  EXPECT_TRUE(events[0].is_collective());
  EXPECT_EQ(events[1].pass_or_event, "allocate");
  EXPECT_EQ(trace.events(1).size(), 1u);
  EXPECT_TRUE(trace.events(3).empty());
}

TEST(Trace, WritesComputeOnceItHasEndedAndNoEndIsAwaitedThatDoesNotCome) {
  testing::TemporaryFolder folder;
  Trace trace;
  trace.open(folder / "trace.jsonl");
  trace.begin_step(1);
  trace.computes("root", "backward", /*has_no_end=*/true);
  const uint64_t forward = trace.computes("a", "forward");
  trace.begin_step(2);
  EXPECT_EQ(lines_of(folder, "trace.jsonl").size(), 0u) << "nothing was written since";
  trace.finished(forward);
  trace.begin_step(3);
  const auto lines = lines_of(folder, "trace.jsonl");
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0]["op"], "compute");
  EXPECT_FALSE(lines[0].contains("done_us"));
  EXPECT_EQ(lines[1]["pass"], "forward");
  EXPECT_EQ(lines[1]["issue_us"], lines[1]["start_us"]);
  EXPECT_LE(lines[1]["start_us"], lines[1]["done_us"]);
}

TEST(Trace, TellsApartTheWaitFromTheCollective) {
  testing::TemporaryFolder folder;
  {
    Trace trace;
    trace.open(folder / "trace.jsonl");
    uint64_t exposed = trace.issued("all_gather", {.unit = "exposed"}, 8);
    uint64_t failed = trace.issued("all_gather", {.unit = "failed"}, 8);
    trace.started(exposed);
    trace.waits(exposed);
    trace.finished(exposed);
    trace.started(failed);
    trace.waits(failed);
  }
  auto lines = lines_of(folder, "trace.jsonl");
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_LE(lines[0]["start_us"], lines[0]["wait_us"]);
  EXPECT_LE(lines[0]["wait_us"], lines[0]["done_us"]);
  EXPECT_TRUE(lines[1].contains("wait_us"));
  EXPECT_FALSE(lines[1].contains("done_us"));
}

TEST(Trace, TakesTheTimesAtWhichCollectivesRanAndNotWhenTheRankNoticed) {
  testing::TemporaryFolder folder;
  double released_us = 0, done_before_us = 0;
  run_ranks_as_threads(2, [&](Communicator& inner) {
    auto trace = std::make_shared<Trace>();
    // run_ranks_as_threads() keeps the communicator.
    auto communicator =
        make_tracing_communicator(std::shared_ptr<Communicator>(&inner, [](Communicator*) {}), trace);
    if (inner.rank() == 0) trace->open(folder / "trace.jsonl");
    at::Tensor mine = at::ones({4}), all = at::empty({8});
    std::promise<void> released;
    communicator->enqueue([&] { released.get_future().get(); });
    auto waited = communicator->all_gather(all, mine, {.unit = "waited"});
    communicator->all_gather(all, mine, {.unit = "left alone"});
    if (inner.rank() == 0) released_us = trace->now_us();
    released.set_value();
    communicator->enqueue([] {})->wait();
    if (inner.rank() == 0) done_before_us = trace->now_us();
    waited->wait();
  });
  auto lines = lines_of(folder, "trace.jsonl");
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_LE(lines[0]["issue_us"], released_us);
  EXPECT_GE(lines[0]["start_us"], released_us);
  EXPECT_LE(lines[0]["done_us"], done_before_us);
  EXPECT_GE(lines[0]["wait_us"], done_before_us);
  EXPECT_GE(lines[1]["start_us"], lines[0]["done_us"]) << "one after another";
  EXPECT_TRUE(lines[1].contains("done_us"));
  EXPECT_FALSE(lines[1].contains("wait_us"));
}

/// Every collective fails, when it is waited for.
class FailingCommunicator final : public testing::ForwardingCommunicator {
 public:
  FailingCommunicator() : ForwardingCommunicator(std::make_shared<SingleCommunicator>()) {}

 protected:
  struct FailingWork final : Work {
    void wait() override { throw std::runtime_error("has failed"); }
    void synchronize() override { throw std::runtime_error("has failed on the device"); }
  };
  std::unique_ptr<Work> collective(const Collective&, const CallSite&) override {
    return std::make_unique<FailingWork>();
  }
};

TEST(Trace, PassesOnHowACollectiveEnds) {
  const auto communicator =
      make_tracing_communicator(std::make_shared<FailingCommunicator>(), std::make_shared<Trace>());
  const auto end_of = [&](void (Work::*end)()) -> std::string {
    const auto work = communicator->broadcast(at::ones({1}), 0, {.unit = "a"});
    try {
      ((*work).*end)();
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(end_of(&Work::wait), "has failed");
  EXPECT_EQ(end_of(&Work::synchronize), "has failed on the device");
}

TEST(Trace, KeepsTheOrderOfIssueWhenTwoThreadsWrite) {
  testing::TemporaryFolder folder;
  constexpr int kCollectives = 300;
  run_ranks_as_threads(2, [&](Communicator& inner) {
    auto trace = std::make_shared<Trace>();
    auto communicator =
        make_tracing_communicator(std::shared_ptr<Communicator>(&inner, [](Communicator*) {}), trace);
    trace->open(folder / ("trace" + std::to_string(inner.rank())));
    at::Tensor mine = at::ones({4}), all = at::empty({8});
    std::vector<std::unique_ptr<Work>> works;
    for (int i = 0; i < kCollectives; ++i) {
      trace->begin_step(i);
      works.push_back(communicator->all_gather(all, mine, {.unit = "a"}));
      communicator->enqueue([trace] { trace->buffer(true, "a", "parameters", 1); });
      if (i % 3 == 0) works.back()->wait();
    }
    works.clear();
    communicator->enqueue([] {})->wait();
  });
  for (const char* name : {"trace0", "trace1"}) {
    int64_t collectives = 0, buffers = 0;
    for (const auto& line : lines_of(folder, name)) {
      if (line["op"] == "buffer") {
        ++buffers;
      } else {
        EXPECT_EQ(line["step"], collectives++);
        EXPECT_TRUE(line.contains("done_us"));
      }
    }
    EXPECT_EQ(collectives, kCollectives);
    EXPECT_EQ(buffers, kCollectives);
  }
}

TEST(Trace, SaysWhenItsFileCannotBeMade) {
  Trace trace;
  EXPECT_THROW(trace.open("/proc/no-such-folder/trace.jsonl"), util::Error);
}

}  // namespace
}  // namespace fsdp::comm
