// Memory that the ranks of a group share: threads and shared memory; gloo has none.

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <chrono>
#include <deque>
#include <random>
#include <thread>

#include "base/util/system.h"
#include "comm/api/communicator.h"
#include "comm/api/memory_operations.h"
#include "comm/shm/common_places.h"
#include "comm/threads/thread_communicator.h"
#include "support/connected_ranks.h"

namespace fsdp::comm {
namespace {

using Group = std::shared_ptr<Communicator>;

constexpr int64_t kPlaceMib = 1 << 20;

/// [numel] fp32 in memory that the ranks have in common; undefined when the system has none left.
at::Tensor take(Communicator& communicator, int64_t numel) {
  at::Tensor tensor;
  const auto fill = [&](c10::DataPtr memory) {
    if (!memory) return;
    c10::Storage storage(c10::Storage::use_byte_size_t(), static_cast<size_t>(4 * numel), std::move(memory));
    tensor = at::empty({0}, at::kFloat).set_(storage, 0, {numel}, {1});
  };
  communicator.common_memory()->enqueue_with_memory(4 * numel, {.unit = "test"}, fill)->wait();
  return tensor;
}

/// All ranks' parts, the n-th filled with value + n, gathered into common memory.
at::Tensor gathered(Communicator& communicator, int64_t part, float value) {
  at::Tensor all = take(communicator, part * communicator.world_size());
  at::Tensor own = at::full({part}, value + static_cast<float>(communicator.rank()));
  communicator.all_gather(all, own, {.unit = "test"})->wait();
  return all;
}

void expect_parts(const at::Tensor& all, int world, float value) {
  const auto parts = all.view({world, -1});
  for (int rank = 0; rank < world; ++rank) {
    EXPECT_TRUE(parts[rank].eq(value + static_cast<float>(rank)).all().item<bool>()) << "part " << rank;
  }
}

class CommonMemoryOver : public ::testing::TestWithParam<std::string> {
 protected:
  static void run(int world_size, const std::function<void(Communicator&)>& body) {
    if (GetParam() == "threads") return run_ranks_as_threads(world_size, body);
    testing::run_ranks_over(GetParam(), {.world_size = world_size, .timeout_seconds = 60},
                            [&](Group& group) { body(*group); });
  }
};

TEST_P(CommonMemoryOver, IsTheSameForAllRanksOfAGroup) {
  for (int world : {2, 3, 4}) {
    run(world, [&](Communicator& communicator) {
      ASSERT_TRUE(communicator.common_memory() != nullptr);
      at::Tensor all = gathered(communicator, 50'000, 7);
      expect_parts(all, world, 7);
      communicator.barrier({.unit = "compared"});
      if (communicator.rank() == world - 1) all.fill_(-1);
      communicator.barrier({.unit = "written"});
      EXPECT_TRUE(all.eq(-1).all().item<bool>());
    });
  }
}

TEST_P(CommonMemoryOver, TakesPartsThatAreInTheirPlaceAlready) {
  run(3, [&](Communicator& communicator) {
    at::Tensor all = take(communicator, 90'000);
    at::Tensor own = all.narrow(0, communicator.rank() * 30'000, 30'000);
    own.fill_(5 + communicator.rank());
    communicator.all_gather(all, own, {.unit = "test"})->wait();
    expect_parts(all, 3, 5);
  });
}

/// Ranks give memory back in one order, but each when it likes.
TEST_P(CommonMemoryOver, IsNotUsedAgainBeforeAllHaveGivenItBack) {
  constexpr int kWorld = 4;
  run(kWorld, [&](Communicator& communicator) {
    std::mt19937 same_everywhere(1), own(static_cast<unsigned>(communicator.rank()) + 2);
    std::deque<std::pair<at::Tensor, float>> held;
    for (int round = 0; round < 150; ++round) {
      const auto value = static_cast<float>(10 * round);
      held.emplace_back(
          gathered(communicator, 10'000 + static_cast<int64_t>(same_everywhere() % 60'000), value), value);
      if (own() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 500));
      for (size_t left = same_everywhere() % 4; held.size() > left; held.pop_front()) {
        const auto& [all, expected] = held.front();
        expect_parts(all, kWorld, expected);
      }
      if (::testing::Test::HasFailure()) return;
    }
  });
}

TEST_P(CommonMemoryOver, OutlivesTheGroup) {
  run(2, [&](Communicator& communicator) {
    at::Tensor all;
    {
      auto group = communicator.subgroup("twice", {0, 1});
      all = gathered(*group, 100'000, 3);
    }
    expect_parts(all, 2, 3);
  });
}

INSTANTIATE_TEST_SUITE_P(All, CommonMemoryOver, ::testing::Values("threads", "shm", "direct_shm"),
                         [](const auto& info) { return info.param; });

TEST(CommonMemory, OfASubgroupIsItsOwn) {
  testing::run_ranks_over_shm({.world_size = 4, .timeout_seconds = 60}, [](Group& world) {
    const int row = world->rank() / 2 * 2;
    Group rows = world->subgroup("rows", {row, row + 1});
    at::Tensor of_world = gathered(*world, 40'000, 1), of_row = gathered(*rows, 40'000, 100 + row);
    expect_parts(of_world, 4, 1);
    expect_parts(of_row, 2, 100 + static_cast<float>(row));
    rows.reset();
    world->barrier({.unit = "end"});
    expect_parts(of_row, 2, 100 + static_cast<float>(row));
  });
}

TEST(CommonMemory, IsAbsentOverGloo) {
  testing::run_ranks_over_gloo(
      {.world_size = 2}, [](Group& communicator) { EXPECT_EQ(communicator->common_memory(), nullptr); });
}

TEST(CommonMemory, AnAllGatherWritesEachPartOnce) {
  constexpr int64_t kPart = 300'000;
  for (int world : {2, 4}) {
    std::atomic<int> ready = 0;
    MovedBytes before, after;
    testing::run_ranks_over("direct_shm", {.world_size = world}, [&](Group& communicator) {
      at::Tensor all = take(*communicator, kPart * world), own = at::ones({kPart});
      if (++ready == world) before = moved_bytes();
      communicator->barrier({.unit = "begin"});
      communicator->all_gather(all, own, {.unit = "test"})->wait();
      communicator->barrier({.unit = "end"});
      if (communicator->rank() == 0) after = moved_bytes();
    });
    EXPECT_EQ(after.written - before.written, 4 * kPart * world);
    EXPECT_EQ(after.read - before.read, 4 * kPart * world);
  }
}

TEST(CommonMemory, AReduceScatterReadsEachGradientOnceAndWritesEachShardOnce) {
  constexpr int64_t kPart = 300'000;
  constexpr int kWorld = 3;
  std::atomic<int> ready = 0;
  MovedBytes before, after;
  testing::run_ranks_over("direct_shm", {.world_size = kWorld}, [&](Group& communicator) {
    at::Tensor gradients = communicator->allocate(kPart * kWorld, at::kFloat).fill_(1);
    at::Tensor shard = at::empty({kPart});
    if (++ready == kWorld) before = moved_bytes();
    communicator->barrier({.unit = "begin"});
    communicator->reduce_scatter(shard, gradients, {.unit = "test"})->wait();
    communicator->barrier({.unit = "end"});
    if (communicator->rank() == 0) after = moved_bytes();
  });
  EXPECT_EQ(after.written - before.written, 4 * kPart * kWorld);
  EXPECT_EQ(after.read - before.read, 4 * kPart * kWorld * kWorld);
}

/// The memory of a rank's segment that is in use while `body` runs on a group of two in one process.
void on_two_ranks(const HostRanks::Options& options,
                  const std::function<void(std::shared_ptr<HostRanks>)>& body) {
  const auto connect = [&](const LaunchEnvironment& environment, const CommOptions& comm_options) -> Group {
    RunStore store = join_run_store(environment, comm_options.timeout());
    auto meeting = HostRanks::meet(environment, store, options);
    leave_store(store, environment);
    body(std::move(meeting.ranks));
    return nullptr;
  };
  testing::run_connected_ranks({.world_size = 2, .queued = false}, connect, [](Group&) {});
}

TEST(CommonMemory, MakesItsArenaAsLongAsWasNeededAndKeepsIt) {
  on_two_ranks({}, [](std::shared_ptr<HostRanks> host) {
    if (host->rank() != 0) return;
    auto common = std::make_shared<CommonPlaces>(host, 0, 1);
    for (int round = 0; round < 5; ++round) {
      c10::DataPtr first = common->open(common->take(3 * kPlaceMib)),
                   second = common->open(common->take(5 * kPlaceMib));
      EXPECT_TRUE(common->is_open(first.get()) && common->is_open(second.get()));
      EXPECT_EQ(reinterpret_cast<uintptr_t>(first.get()) % 64, 0U);
      const int64_t taken = host->own()->taken_bytes();
      EXPECT_GE(taken, 8 * kPlaceMib) << "round " << round;
      EXPECT_LE(taken, 8 * kPlaceMib + 4 * util::page_bytes()) << "round " << round;
    }
    common.reset();
    EXPECT_EQ(host->own()->taken_bytes(), 0);
  });
}

TEST(CommonMemory, TakesItsReserveAtOnce) {
  on_two_ranks({}, [](std::shared_ptr<HostRanks> host) {
    if (host->rank() != 0) return;
    auto common = std::make_shared<CommonPlaces>(host, 0, 1);
    common->reserve(16 * kPlaceMib);
    EXPECT_EQ(host->own()->taken_bytes(), 0);
    c10::DataPtr first = common->open(common->take(kPlaceMib)),
                 second = common->open(common->take(9 * kPlaceMib));
    EXPECT_EQ(host->own()->taken_bytes(), 16 * kPlaceMib);
  });
}

TEST(CommonMemory, HasNoPlaceWhereTheSystemHasNoMemory) {
  HostRanks::Options small;
  small.segment_bytes = SharedSegment::kControlBytes + (16 << 20);  // half of it common
  on_two_ranks(small, [](std::shared_ptr<HostRanks> host) {
    if (host->rank() != 0) return;
    auto common = std::make_shared<CommonPlaces>(host, 0, 1);
    EXPECT_EQ(common->take(9 * kPlaceMib), CommonPlaces::kNowhere);
    const int64_t place = common->take(5 * kPlaceMib);
    EXPECT_NE(place, CommonPlaces::kNowhere);
    EXPECT_EQ(common->take(5 * kPlaceMib), CommonPlaces::kNowhere) << "the first is in use";
    common->drop(place);
    EXPECT_NE(common->take(5 * kPlaceMib), CommonPlaces::kNowhere);
  });
}

}  // namespace
}  // namespace fsdp::comm
