// Subgroups keep the promises of the communicator that they come from: over threads, shared memory and gloo.

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>

#include "base/util/error.h"
#include "comm/api/activity.h"
#include "comm/api/communicator.h"
#include "comm/api/trace.h"
#include "comm/threads/thread_communicator.h"
#include "support/connected_ranks.h"
#include "support/forwarding_communicator.h"

namespace fsdp::comm {
namespace {

using ::testing::HasSubstr;
using util::Error;

using Group = std::shared_ptr<Communicator>;

/// The ranks with this one's remainder by `count`.
std::vector<int> every(int count, const Communicator& communicator) {
  std::vector<int> ranks;
  for (int rank = communicator.rank() % count; rank < communicator.world_size(); rank += count) {
    ranks.push_back(rank);
  }
  return ranks;
}

double sum_over(Communicator& group, double value) {
  at::Tensor tensor = at::full({1}, value, at::kDouble);
  group.all_reduce(tensor, ReduceOp::kSum, {.unit = "test"})->wait();
  return tensor.item<double>();
}

class Subgroups : public ::testing::TestWithParam<std::string> {
 protected:
  void run(int world_size, const std::function<void(Communicator&)>& body) {
    if (GetParam() == "threads") return run_ranks_as_threads(world_size, body);
    testing::run_ranks_over(GetParam(), {.world_size = world_size},
                            [&](Group& communicator) { body(*communicator); });
  }
};

TEST_P(Subgroups, NumberTheirRanksFromZeroAndCommunicateAmongThemselves) {
  run(5, [](Communicator& world) {
    std::vector<int> ranks = every(2, world);
    Group group = world.subgroup("parity", ranks);
    int size = static_cast<int>(ranks.size());
    EXPECT_EQ(group->world_size(), size);
    EXPECT_EQ(group->rank(), world.rank() / 2);
    EXPECT_EQ(group->backend_name(), world.backend_name());

    at::Tensor mine = at::full({2}, world.rank(), at::kFloat), all = group->allocate(2 * size, at::kFloat);
    group->all_gather(all, mine, {.unit = "test"})->wait();
    at::Tensor expected = at::tensor(ranks).to(at::kFloat).repeat_interleave(2);
    EXPECT_TRUE(at::equal(all, expected));

    at::Tensor part = at::empty({2});
    group->reduce_scatter(part, all, {.unit = "test"})->wait();
    EXPECT_TRUE(at::equal(part, mine * size));
    group->broadcast(mine, size - 1, {.unit = "test"})->wait();
    EXPECT_EQ(mine[0].item<int>(), ranks.back());
    at::Tensor from_before = at::empty({2});
    mine.fill_(world.rank());
    group->shift(from_before, mine, {.unit = "test"})->wait();
    EXPECT_EQ(from_before[1].item<int>(), ranks[static_cast<size_t>((group->rank() + size - 1) % size)]);
    group->barrier({.unit = "test"});
    EXPECT_EQ(all_gather_text(*group, std::to_string(world.rank()), {.unit = "test"}).back(),
              std::to_string(ranks.back()));
    world.barrier({.unit = "end"});
  });
}

TEST_P(Subgroups, OfOneOrAllRanksNeedNoConnections) {
  run(2, [](Communicator& world) {
    Group alone = world.subgroup("alone", {world.rank()});
    EXPECT_EQ(alone->world_size(), 1);
    EXPECT_EQ(alone->backend_name(), "none");
    EXPECT_EQ(sum_over(*alone, 3), 3);
    EXPECT_EQ(world.subgroup("all", {0, 1}).get(), &world);
    EXPECT_THROW(world.subgroup("others", {1 - world.rank()}), Error);
    EXPECT_THROW(world.subgroup("descending", {1, 0}), Error);
    EXPECT_THROW(world.subgroup("outside", {world.rank(), 2}), Error);
    world.barrier({.unit = "end"});
  });
}

TEST_P(Subgroups, MayHaveSubgroupsAndBeMadeAgain) {
  run(6, [](Communicator& world) {
    for (int again = 0; again < 2; ++again) {
      int third = world.rank() / 3 * 3;
      Group half = world.subgroup("half", {third, third + 1, third + 2});
      EXPECT_EQ(sum_over(*half, world.rank()), 3 * third + 3);
      if (half->rank() == 1) continue;
      Group ends = half->subgroup("ends", {0, 2});
      EXPECT_EQ(ends->rank(), half->rank() / 2);
      EXPECT_EQ(sum_over(*ends, world.rank()), 2 * third + 2);
    }
    world.barrier({.unit = "end"});
  });
}

INSTANTIATE_TEST_SUITE_P(All, Subgroups,
                         ::testing::Values("threads", "gloo", "direct_gloo", "shm", "direct_shm"),
                         [](const auto& info) { return info.param; });

// In the processes that tests/comm/mpi/mpi_test.cpp starts.
INSTANTIATE_TEST_SUITE_P(Mpi, Subgroups,
                         ::testing::ValuesIn(testing::is_started_by_mpirun()
                                                 ? std::vector<std::string>{"mpi", "direct_mpi"}
                                                 : std::vector<std::string>{}),
                         [](const auto& info) { return info.param; });

class QueuedSubgroups : public Subgroups {};

// Rank 0 comes late to one group, while the others use theirs and rank 0 the other one of its own.
TEST_P(QueuedSubgroups, DoNotWaitForEachOther) {
  std::promise<void> promise;
  std::shared_future<void> others_are_done = promise.get_future().share();
  std::atomic<int> done = 0;
  run(4, [&](Communicator& world) {
    int row = world.rank() / 2 * 2, column = world.rank() % 2;
    Group data = world.subgroup("data", {row, row + 1});
    Group dcn = world.subgroup("dcn", {column, column + 2});
    if (world.rank() == 0) dcn->enqueue([others_are_done] { others_are_done.wait(); });
    at::Tensor slow = at::ones({1});
    auto held_up = dcn->all_reduce(slow, ReduceOp::kSum, {.unit = "slow"});
    for (int i = 0; i < 20; ++i) EXPECT_EQ(sum_over(*data, 1), 2);
    at::Tensor mine = at::full({20'000}, world.rank(), at::kFloat), other = at::empty({20'000});
    data->shift(other, mine, {.unit = "ring"})->wait();
    EXPECT_EQ(other[-1].item<int>(), 2 * row + 1 - world.rank());
    EXPECT_EQ(sum_over(world, 1), 4);
    if (++done == 4) promise.set_value();
    held_up->wait();
    EXPECT_EQ(slow.item<float>(), 2);
    world.barrier({.unit = "end"});
  });
}

// The group is held up by rank 0 until all ranks have used the duplicate.
TEST_P(QueuedSubgroups, ADuplicateOfAGroupIsNotOrderedWithIt) {
  std::promise<void> promise;
  std::shared_future<void> others_are_done = promise.get_future().share();
  std::atomic<int> done = 0;
  run(4, [&](Communicator& world) {
    Group twin = world.duplicate("twin"), second = world.duplicate("twin");
    EXPECT_NE(twin.get(), &world);
    EXPECT_NE(twin, second);
    EXPECT_EQ(std::pair(twin->rank(), twin->world_size()), std::pair(world.rank(), world.world_size()));
    if (world.rank() == 0) world.enqueue([others_are_done] { others_are_done.wait(); });
    at::Tensor slow = at::ones({1});
    auto held_up = world.all_reduce(slow, ReduceOp::kSum, {.unit = "slow"});
    for (int i = 0; i < 20; ++i) EXPECT_EQ(sum_over(i % 2 == 0 ? *twin : *second, 1), 4);
    if (++done == 4) promise.set_value();
    held_up->wait();
    EXPECT_EQ(slow.item<float>(), 4);
    Group alone = world.subgroup("alone", {world.rank()});
    EXPECT_EQ(alone->duplicate("twin"), alone);
    world.barrier({.unit = "end"});
  });
}

TEST_P(QueuedSubgroups, StayUsableWhenAnotherGroupHasFailed) {
  run(4, [](Communicator& world) {
    int row = world.rank() / 2 * 2;
    Group data = world.subgroup("data", {row, row + 1});
    auto failed = data->enqueue([] { fail(ErrorKind::kData, "no memory"); });
    EXPECT_THROW(failed->wait(), Error);
    EXPECT_THROW(sum_over(*data, 1), Error);
    EXPECT_EQ(sum_over(world, 1), 4);
    Group again = world.subgroup("data", {row, row + 1});
    EXPECT_EQ(sum_over(*again, 1), 2);
    world.barrier({.unit = "end"});
  });
}

INSTANTIATE_TEST_SUITE_P(All, QueuedSubgroups, ::testing::Values("threads", "gloo", "shm", "hierarchical2"),
                         [](const auto& info) { return info.param; });

class ConnectedSubgroups : public ::testing::TestWithParam<std::string> {};

TEST_P(ConnectedSubgroups, ErrorsNameRanksOfTheWholeRun) {
  std::atomic<int> checked = 0;
  std::promise<void> promise;
  std::shared_future<void> seen = promise.get_future().share();
  testing::run_ranks_over(GetParam(), {.world_size = 4}, [&](Group& world) {
    Group group = world->subgroup("data", every(2, *world));
    if (world->rank() == 3) return;  // its connections close
    if (world->rank() != 1) {
      seen.wait();  // rank 0 hosts the store
      EXPECT_EQ(sum_over(*group, 1), 2) << "a group without the lost rank goes on";
      return;
    }
    try {
      sum_over(*group, 1);
      ADD_FAILURE() << "expected an error";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kPeerLost) << error.what();
      EXPECT_THAT(error.what(), HasSubstr("all_reduce of test (other) failed on rank "
                                          "1 of 4 (group data: ranks 1, 3)"));
      EXPECT_THAT(error.what(), HasSubstr("no answer from rank 3"));
      ++checked;
    }
    promise.set_value();
  });
  EXPECT_EQ(checked, 1);
}

TEST_P(ConnectedSubgroups, OfAPeerThatDoesNotComeIsATimeout) {
  std::atomic<int> timeouts = 0;
  std::promise<void> promise;
  std::shared_future<void> told = promise.get_future().share();
  testing::run_ranks_over(GetParam(), {.world_size = 3, .timeout_seconds = 2}, [&](Group& world) {
    if (world->rank() == 2) return told.wait();
    if (world->rank() == 0) return told.wait();
    try {
      world->subgroup("data", {1, 2});
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kTimeout) << error.what();
      EXPECT_THAT(error.what(), HasSubstr("group data: ranks 1, 2"));
      EXPECT_THAT(error.what(), HasSubstr("no answer from rank 2"));
      ++timeouts;
    }
    promise.set_value();
  });
  EXPECT_EQ(timeouts, 1);
}

INSTANTIATE_TEST_SUITE_P(All, ConnectedSubgroups, ::testing::Values("gloo", "shm"),
                         [](const auto& info) { return info.param; });

TEST(ThreadSubgroup, OfARankThatThrowsEndsToo) {
  for (int thrower : {0, 1, 2, 3}) {
    EXPECT_THROW(run_ranks_as_threads(4,
                                      [&](Communicator& world) {
                                        Group group = world.subgroup("parity", every(2, world));
                                        if (world.rank() == thrower) throw std::logic_error("gave up");
                                        sum_over(*group, 1);
                                        sum_over(world, 1);
                                      }),
                 std::logic_error);
  }
}

TEST(TracedSubgroup, WritesToTheSameTrace) {
  run_ranks_as_threads(4, [](Communicator& world) {
    auto trace = std::make_shared<Trace>();
    Group traced = make_tracing_communicator(testing::borrowed(world), trace);
    EXPECT_EQ(sum_over(*traced->subgroup("parity", every(2, world)), 1), 2);
    EXPECT_EQ(sum_over(*traced->subgroup("all", {0, 1, 2, 3}), 1), 4);
    EXPECT_EQ(trace->events(0).size(), 2u);
    world.barrier({.unit = "end"});
  });
}

TEST(NotedSubgroup, TellsTheSameActivity) {
  testing::run_ranks_over_gloo({.world_size = 3, .queued = false}, [](Group& world) {
    auto activity = std::make_shared<Activity>();
    Group noted = make_activity_communicator(world, activity);
    if (world->rank() < 2) {
      EXPECT_EQ(sum_over(*noted->subgroup("two", {0, 1}), 1), 2);
      EXPECT_EQ(activity->snapshot().last, "all_reduce of test (other)");
    }
    world->barrier({.unit = "end"});
  });
}

}  // namespace
}  // namespace fsdp::comm
