#include "comm/fake/fake_communicator.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/util/error.h"

namespace fsdp::comm {
namespace {

TEST(FakeCommunicator, GathersItsOwnPartAndZeros) {
  FakeCommunicator fake(3);
  at::Tensor output = at::full({6}, 9.0f);
  fake.all_gather(output, at::ones({2}), {.unit = "u"})->wait();
  EXPECT_TRUE(at::equal(output, at::tensor({1.0f, 1.0f, 0.0f, 0.0f, 0.0f, 0.0f})));
}

TEST(FakeCommunicator, GathersInPlace) {
  FakeCommunicator fake(2);
  at::Tensor output = at::full({4}, 9.0f);
  fake.all_gather(output, output.narrow(0, 0, 2), {.unit = "u"})->wait();
  EXPECT_TRUE(at::equal(output, at::tensor({9.0f, 9.0f, 0.0f, 0.0f})));
}

TEST(FakeCommunicator, ReducesToItsPartOfItsOwnInput) {
  FakeCommunicator fake(2);
  at::Tensor output = at::empty({2});
  fake.reduce_scatter(output, at::arange(4, at::kFloat), {.unit = "u"})->wait();
  EXPECT_TRUE(at::equal(output, at::tensor({0.0f, 1.0f})));
  at::Tensor sum = at::ones({2});
  fake.all_reduce(sum, ReduceOp::kSum, {.unit = "u"})->wait();
  EXPECT_TRUE(at::equal(sum, at::ones({2})));
}

TEST(FakeCommunicator, ShiftsAsIfAllRanksSentTheSame) {
  FakeCommunicator fake(2);
  at::Tensor output = at::full({2, 2}, NAN);
  fake.shift(output, at::ones({2, 2}), {.unit = "u"})->wait();
  EXPECT_TRUE(at::equal(output, at::ones({2, 2})));
}

TEST(FakeCommunicator, RefusesAShiftOfTensorsThatDoNotFit) {
  FakeCommunicator fake(2);
  const at::Tensor three = at::ones({3}), columns = at::ones({3, 3}).t();
  EXPECT_THROW(fake.shift(at::empty({3}), at::ones({1}), {.unit = "u"}), util::Error);
  EXPECT_THROW(fake.shift(at::empty({3}, at::kLong), three, {.unit = "u"}), util::Error);
  EXPECT_THROW(fake.shift(at::empty({3, 3}), columns, {.unit = "u"}), util::Error);
}

TEST(FakeCommunicator, IsDoneAtTheCallByDefault) {
  FakeCommunicator fake(2);
  bool done = false;
  auto work = fake.enqueue([&] { done = true; });
  EXPECT_TRUE(done);
  work->wait();
}

TEST(FakeCommunicator, CanBeAsLateAsWaitingAllows) {
  FakeCommunicator fake(2, FakeTiming::kWhenWaitedFor);
  std::vector<int> order;
  auto first = fake.enqueue([&] { order.push_back(1); });
  auto second = fake.enqueue([&] { order.push_back(2); });
  auto third = fake.enqueue([&] { order.push_back(3); });
  EXPECT_TRUE(order.empty());
  second->wait();
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
  first->wait();
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
  fake.set_timing(FakeTiming::kAtOnce);
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
}

/// As the host's thread of a unit does, while the rank's own issues and waits.
TEST(FakeCommunicator, LetsOtherThreadsWait) {
  for (const FakeTiming timing : {FakeTiming::kAtOnce, FakeTiming::kWhenWaitedFor}) {
    FakeCommunicator fake(2, timing);
    std::vector<int> order;
    std::atomic<int> done = 0;
    std::vector<std::thread> threads;
    constexpr int kTasks = 300;
    const auto issue = [&](int task) -> std::shared_ptr<Work> {
      return fake.enqueue([&, task] {
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

TEST(FakeCommunicator, LetsATaskWaitForAThreadThatWaitsForAnEarlierOne) {
  FakeCommunicator fake(2, FakeTiming::kWhenWaitedFor);
  std::shared_ptr<Work> earlier = fake.enqueue([] {});
  fake.enqueue([earlier] { std::thread([earlier] { earlier->wait(); }).join(); })->wait();
}

TEST(FakeCommunicator, GoesOnAfterATaskThatFailed) {
  FakeCommunicator fake(2, FakeTiming::kWhenWaitedFor);
  bool done = false;
  auto fails = fake.enqueue([] { throw std::runtime_error("failed"); });
  auto after = fake.enqueue([&] { done = true; });
  EXPECT_THROW(after->wait(), std::runtime_error);
  EXPECT_FALSE(done);
  after->wait();
  EXPECT_TRUE(done);
}

TEST(FakeCommunicator, IsItselfForTensorsOfTheHost) {
  auto fake = make_fake_communicator(4, at::kCPU);
  EXPECT_NE(dynamic_cast<FakeCommunicator*>(fake.get()), nullptr);
  EXPECT_EQ(fake->world_size(), 4);
}

TEST(FakeCommunicator, ThrowsWhatATaskThrowsFromWait) {
  FakeCommunicator fake(2, FakeTiming::kWhenWaitedFor);
  auto work = fake.enqueue([] { throw std::runtime_error("thrown by a test"); });
  EXPECT_THROW(work->wait(), std::runtime_error);
}

}  // namespace
}  // namespace fsdp::comm
