#include "comm/idle_communicator.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

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
