#include "comm/trace.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "comm/single_communicator.h"
#include "support/temporary_folder.h"
#include "util/error.h"

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
  trace->begin_step(4);  // a file can be read up to the step under way

  auto lines = lines_of(folder, "trace.jsonl");
  ASSERT_EQ(lines.size(), 5u);
  std::vector<std::string> ops;
  for (const auto& line : lines) {
    ops.push_back(line["op"]);
    EXPECT_EQ(line["step"], 3);
  }
  EXPECT_EQ(ops,
            (std::vector<std::string>{"all_gather", "reduce_scatter", "buffer", "all_reduce", "broadcast"}));
  EXPECT_EQ(lines[0]["unit"], "a");
  EXPECT_EQ(lines[0]["pass"], "forward");
  EXPECT_EQ(lines[0]["bytes"], 16);
  EXPECT_LE(lines[0]["issue_us"].get<double>(), lines[0]["wait_us"].get<double>());
  EXPECT_LE(lines[0]["wait_us"].get<double>(), lines[0]["done_us"].get<double>());
  EXPECT_EQ(lines[2]["event"], "allocate");
  EXPECT_EQ(lines[2]["kind"], "gradients");
  EXPECT_EQ(lines[2]["bytes"], 128);
  EXPECT_EQ(lines[4]["bytes"], 4);
}

TEST(Trace, LeavesTheEndOfACollectiveThatNobodyWaitedForOpen) {
  testing::TemporaryFolder folder;
  {
    auto trace = std::make_shared<Trace>();
    trace->open(folder / "trace.jsonl");
    trace->issued("all_gather", {.unit = "a"}, 8);
  }
  auto lines = lines_of(folder, "trace.jsonl");
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_FALSE(lines[0].contains("done_us"));
}

TEST(Trace, SaysWhenItsFileCannotBeMade) {
  Trace trace;
  EXPECT_THROW(trace.open("/proc/no-such-folder/trace.jsonl"), util::Error);
}

}  // namespace
}  // namespace fsdp::comm
