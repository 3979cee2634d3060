#include "comm/idle_communicator.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

namespace fsdp::comm {
namespace {

TEST(IdleCommunicator, GathersItsOwnPartAndZeros) {
  IdleCommunicator idle(3);
  at::Tensor output = at::full({6}, 9.0f);
  idle.all_gather(output, at::ones({2}), {.unit = "u"})->wait();
  EXPECT_TRUE(at::equal(output, at::tensor({1.0f, 1.0f, 0.0f, 0.0f, 0.0f, 0.0f})));
}

TEST(IdleCommunicator, GathersInPlace) {
  IdleCommunicator idle(2);
  at::Tensor output = at::full({4}, 9.0f);
  idle.all_gather(output, output.narrow(0, 0, 2), {.unit = "u"})->wait();
  EXPECT_TRUE(at::equal(output, at::tensor({9.0f, 9.0f, 0.0f, 0.0f})));
}

TEST(IdleCommunicator, ReducesToItsPartOfItsOwnInput) {
  IdleCommunicator idle(2);
  at::Tensor output = at::empty({2});
  idle.reduce_scatter(output, at::arange(4, at::kFloat), {.unit = "u"})->wait();
  EXPECT_TRUE(at::equal(output, at::tensor({0.0f, 1.0f})));
  at::Tensor sum = at::ones({2});
  idle.all_reduce(sum, ReduceOp::kSum, {.unit = "u"})->wait();
  EXPECT_TRUE(at::equal(sum, at::ones({2})));
}

TEST(IdleCommunicator, IsDoneAtTheCallByDefault) {
  IdleCommunicator idle(2);
  bool done = false;
  auto work = idle.enqueue([&] { done = true; });
  EXPECT_TRUE(done);
  work->wait();
}

TEST(IdleCommunicator, CanBeAsLateAsWaitingAllows) {
  IdleCommunicator idle(2, IdleTiming::kWhenWaitedFor);
  std::vector<int> order;
  auto first = idle.enqueue([&] { order.push_back(1); });
  auto second = idle.enqueue([&] { order.push_back(2); });
  auto third = idle.enqueue([&] { order.push_back(3); });
  EXPECT_TRUE(order.empty());
  second->wait();
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
  first->wait();
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
  idle.set_timing(IdleTiming::kAtOnce);
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
}

/// As the host's thread of a unit does, while the rank's own issues and waits.
TEST(IdleCommunicator, LetsOtherThreadsWait) {
  for (const IdleTiming timing : {IdleTiming::kAtOnce, IdleTiming::kWhenWaitedFor}) {
    IdleCommunicator idle(2, timing);
    std::vector<int> order;
    std::atomic<int> done = 0;
    std::vector<std::thread> threads;
    constexpr int kTasks = 300;
    const auto issue = [&](int task) -> std::shared_ptr<Work> {
      return idle.enqueue([&, task] {
        order.push_back(task);
        ++done;
      });
    };
    for (int i = 0; i < kTasks; i += 2) {
      threads.emplace_back([first = issue(i), &done, i] {
        first->wait();
        EXPECT_GT(done, i);
      });
      issue(i + 1)->wait();
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(order.size(), static_cast<size_t>(kTasks));
    EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
  }
}

TEST(IdleCommunicator, LetsATaskWaitForAThreadThatWaitsForAnEarlierOne) {
  IdleCommunicator idle(2, IdleTiming::kWhenWaitedFor);
  std::shared_ptr<Work> earlier = idle.enqueue([] {});
  idle.enqueue([earlier] { std::thread([earlier] { earlier->wait(); }).join(); })->wait();
}

TEST(IdleCommunicator, GoesOnAfterATaskThatFailed) {
  IdleCommunicator idle(2, IdleTiming::kWhenWaitedFor);
  bool done = false;
  auto fails = idle.enqueue([] { throw std::runtime_error("failed"); });
  auto after = idle.enqueue([&] { done = true; });
  EXPECT_THROW(after->wait(), std::runtime_error);
  EXPECT_FALSE(done);
  after->wait();
  EXPECT_TRUE(done);
}

TEST(IdleCommunicator, IsItselfForTensorsOfTheHost) {
  auto idle = make_idle_communicator(4, at::kCPU);
  EXPECT_NE(dynamic_cast<IdleCommunicator*>(idle.get()), nullptr);
  EXPECT_EQ(idle->world_size(), 4);
}

TEST(IdleCommunicator, ThrowsWhatATaskThrowsFromWait) {
  IdleCommunicator idle(2, IdleTiming::kWhenWaitedFor);
  auto work = idle.enqueue([] { throw std::runtime_error("thrown by a test"); });
  EXPECT_THROW(work->wait(), std::runtime_error);
}

}  // namespace
}  // namespace fsdp::comm
