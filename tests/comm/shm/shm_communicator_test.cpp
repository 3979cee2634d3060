// What is the shared-memory communicator's alone; the promises that it shares with the others are tested in
// communicator_test.cpp, subgroup_test.cpp and stream_communicator_test.cpp.

#include "comm/shm/shm_communicator.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <future>

#include "comm/threads/thread_communicator.h"
#include "support/connected_ranks.h"
#include "support/process_ranks.h"

namespace fsdp::comm {
namespace {

using ::testing::HasSubstr;
using util::Error;

using Group = std::shared_ptr<Communicator>;

at::Tensor shm_numbers_of(int rank, int64_t numel, at::ScalarType dtype) {
  at::Tensor index = at::arange(numel, at::kDouble) + 1000.0 * rank;
  return (at::sin(index * 12.9898) * (rank % 2 == 0 ? 100.0 : 1.0)).to(dtype);
}

/// In memory of the communicator or in ordinary memory, `shift` elements behind an aligned address.
at::Tensor filled(Communicator& communicator, bool shared, int64_t shift, const at::Tensor& values) {
  const int64_t numel = values.numel() + shift;
  at::Tensor whole =
      shared ? communicator.allocate(numel, values.scalar_type()) : at::empty({numel}, values.options());
  return whole.narrow(0, shift, values.numel()).copy_(values);
}

/// Sizes that go through stages in one piece and in several, and that do not; divided by the world or not.
constexpr int64_t kSizes[] = {1, 3, 1000, 8193, 70'001, 300'007};

struct Layout {
  bool shared;  ///< of this rank's tensors
  int64_t shift;
};

/// Every collective on tensors of that layout; all results, one after another.
std::vector<at::Tensor> results_of(Communicator& communicator,
                                   const std::function<Layout(int rank)>& layout) {
  const int rank = communicator.rank(), world = communicator.world_size();
  at::set_num_threads(1);  // ranks with a team each on a few cores wait for each other most of the time
  const auto [shared, shift] = layout(rank);
  std::vector<at::Tensor> results;
  for (auto dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble, at::kLong, at::kByte}) {
    for (int64_t numel : kSizes) {
      if (numel > 10'000 && (world > 4 || c10::elementSize(dtype) > 4)) continue;  // they take a while
      at::Tensor mine = shm_numbers_of(rank, numel, dtype);
      at::Tensor all = filled(communicator, shared, shift, at::zeros({numel * world}, dtype));
      communicator.all_gather(all, filled(communicator, shared, shift, mine), {.unit = "test"})->wait();
      results.push_back(all);
      at::Tensor in_place = filled(communicator, shared, shift, at::zeros({numel * world}, dtype));
      at::Tensor own = in_place.narrow(0, rank * numel, numel).copy_(mine);
      communicator.all_gather(in_place, own, {.unit = "test"})->wait();
      results.push_back(in_place);

      at::Tensor input = filled(communicator, shared, shift, shm_numbers_of(rank, numel * world, dtype));
      at::Tensor part = filled(communicator, shared, shift, mine);
      communicator.reduce_scatter(part, input, {.unit = "test"})->wait();
      results.push_back(part);
      for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
        at::Tensor reduced = filled(communicator, shared, shift, mine);
        communicator.all_reduce(reduced, op, {.unit = "test"})->wait();
        results.push_back(reduced);
      }
      at::Tensor sent = filled(communicator, shared, shift, mine);
      communicator.broadcast(sent, world - 1, {.unit = "test"})->wait();
      results.push_back(sent);
      at::Tensor shifted = filled(communicator, shared, shift, at::zeros({numel}, dtype));
      communicator.shift(shifted, filled(communicator, shared, shift, mine), {.unit = "test"})->wait();
      results.push_back(shifted);
    }
  }
  return results;
}

class ShmResults : public ::testing::TestWithParam<int> {};

TEST_P(ShmResults, AreBitForBitThoseOfThreadsWhereverTensorsLie) {
  const int world = GetParam();
  std::vector<std::vector<at::Tensor>> expected(static_cast<size_t>(world));
  run_ranks_as_threads(world, [&](Communicator& communicator) {
    expected[static_cast<size_t>(communicator.rank())] = results_of(communicator, [](int) {
      return Layout{false, 0};
    });
  });
  const std::function<Layout(int)> layouts[] = {[](int) {
                                                  return Layout{true, 0};
                                                },
                                                [](int) {
                                                  return Layout{false, 0};
                                                },
                                                [](int rank) {
                                                  return Layout{rank % 2 == 0, 1 + rank};
                                                }};
  for (const auto& layout : layouts) {
    testing::run_ranks_over_shm({.world_size = world, .timeout_seconds = 60}, [&](Group& communicator) {
      const auto results = results_of(*communicator, layout);
      const auto& expected_here = expected[static_cast<size_t>(communicator->rank())];
      ASSERT_EQ(results.size(), expected_here.size());
      for (size_t i = 0; i < results.size(); ++i) {
        ASSERT_TRUE(at::equal(results[i], expected_here[i]))
            << "result " << i << " of rank " << communicator->rank();
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(All, ShmResults, ::testing::Values(2, 3, 4, 7),
                         [](const auto& info) { return std::to_string(info.param) + "Ranks"; });

TEST(ShmCommunicator, ReducesIntoAnyPartOfItsInput) {
  constexpr int64_t kPart = 50'000;
  testing::run_ranks_over_shm({.world_size = 3}, [&](Group& communicator) {
    for (int64_t offset : {int64_t{0}, kPart, int64_t{777}, 2 * kPart}) {
      at::Tensor input = communicator->allocate(3 * kPart, at::kFloat);
      input.copy_(at::arange(3 * kPart) % 1000);
      at::Tensor expected = (input.narrow(0, communicator->rank() * kPart, kPart) * 3).clone();
      at::Tensor output = input.narrow(0, offset, kPart);
      communicator->reduce_scatter(output, input, {.unit = "test"})->wait();
      EXPECT_TRUE(at::equal(output, expected)) << "at " << offset;
    }
  });
}

TEST(ShmCommunicator, ReducesTensorsOfAnyShape) {
  testing::run_ranks_over_shm({.world_size = 2}, [](Group& communicator) {
    at::Tensor columns = at::arange(20'000, at::kFloat).view({100, 200}).t();
    at::Tensor expected = columns * 2;
    communicator->all_reduce(columns, ReduceOp::kSum, {.unit = "test"})->wait();
    EXPECT_TRUE(at::equal(columns, expected));
  });
}

// Results are used and overwritten at once, by ranks that are now early and now late.
TEST(ShmCommunicator, LetsBuffersBeUsedAgainAtOnce) {
  testing::run_ranks_over_shm({.world_size = 4, .timeout_seconds = 60}, [](Group& communicator) {
    const int rank = communicator->rank();
    for (int64_t numel : {16, 20'000}) {
      at::Tensor all = communicator->allocate(4 * numel, at::kFloat), part = at::empty({numel});
      at::Tensor own = all.narrow(0, rank * numel, numel), small = at::empty({8});
      for (int round = 0; round < 200; ++round) {
        own.fill_(round * 4 + rank);
        communicator->all_gather(all, own, {.unit = "test"})->wait();
        for (int r = 0; r < 4; ++r) ASSERT_EQ(all[(r + 1) * numel - 1].item<float>(), round * 4 + r);
        all.fill_(round + rank);
        communicator->reduce_scatter(part, all, {.unit = "test"})->wait();
        ASSERT_EQ(part[numel - 1].item<float>(), 4 * round + 6);
        all.fill_(-1);
        small.fill_(rank == round % 4 ? round : 0);
        communicator->all_reduce(small, ReduceOp::kMax, {.unit = "test"})->wait();
        ASSERT_EQ(small[7].item<float>(), round);
        small.fill_(rank);
        communicator->broadcast(small, round % 4, {.unit = "test"})->wait();
        ASSERT_EQ(small[0].item<float>(), round % 4);
        all.fill_(rank);
        communicator->shift(part, all.narrow(0, 0, numel), {.unit = "test"})->wait();
        ASSERT_EQ(part[numel - 1].item<int>(), (rank + 3) % 4);
      }
    }
  });
}

TEST(ShmCommunicator, SubgroupsWorkBesideTheWorldInOtherThreads) {
  testing::run_ranks_over_shm({.world_size = 4, .timeout_seconds = 60}, [](Group& world) {
    const int rank = world->rank(), row = rank / 2 * 2, column = rank % 2;
    Group rows = world->subgroup("rows", {row, row + 1});
    Group columns = world->subgroup("columns", {column, column + 2});
    const auto work = [rank](Group group, int64_t numel, double expected) {
      for (int round = 0; round < 100; ++round) {
        at::Tensor sum = group->allocate(numel, at::kDouble).fill_(1 << rank);
        group->all_reduce(sum, ReduceOp::kSum, {.unit = "test"})->wait();
        ASSERT_TRUE(sum.eq(expected).all().item<bool>());
      }
    };
    auto first = std::async(std::launch::async, work, rows, 10'000, 3 << row);
    auto second = std::async(std::launch::async, work, columns, 33, 5 << column);
    work(world, 5000, 15);
    first.get();
    second.get();
  });
}

TEST(ShmCommunicator, CollectivesThatDoNotMatchAreAnError) {
  std::atomic<int> seen = 0;
  testing::run_ranks_over("direct_shm", {.world_size = 2}, [&](Group& communicator) {
    at::Tensor value = at::ones({communicator->rank() + 1});
    for (int again = 0; again < 2; ++again) {
      try {
        communicator->all_reduce(value, ReduceOp::kSum, {.unit = "loss"})->wait();
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), HasSubstr("all_reduce of loss"));
        ++seen;
      }
    }
  });
  EXPECT_EQ(seen, 4) << "a group that has failed cannot be used again";
}

std::string maps() {
  std::ifstream file("/proc/self/maps");
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(ShmCommunicator, LeavesNothingBehind) {
  const auto fds = [] { return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}); };
  testing::run_ranks_over_shm({.world_size = 2}, [](Group&) {});  // what is made once, is made now
  const auto before = fds();
  at::Tensor survivor;
  testing::run_ranks_over_shm({.world_size = 3}, [&](Group& world) {
    EXPECT_THAT(maps(), HasSubstr("memfd:fsdp-shared"));
    Group group = world->rank() == 2 ? nullptr : world->subgroup("two", {0, 1});
    at::Tensor value = world->allocate(100'000, at::kFloat).fill_(1);
    if (group) group->all_reduce(value, ReduceOp::kSum, {.unit = "test"})->wait();
    world->all_reduce(value, ReduceOp::kSum, {.unit = "test"})->wait();
    if (world->rank() == 0) survivor = value;
  });
  EXPECT_EQ(survivor[99'999].item<float>(), 5) << "a tensor keeps its memory";
  survivor.reset();
  EXPECT_THAT(maps(), ::testing::Not(HasSubstr("memfd:fsdp-shared")));
  // The stores of both rendezvous close their connections on threads of their own, which may be late on a
  // busy machine.
  for (int looks = 0; looks < 500 && fds() > before; ++looks) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_LE(fds(), before);
}

/// Connects threads with these options and runs `body` where they can share memory. Returns why each cannot.
std::vector<std::string> obstacles(const std::vector<HostRanks::Options>& options,
                                   const std::function<void(Communicator&)>& body) {
  std::vector<std::string> found(options.size());
  const auto connect = [&](const LaunchEnvironment& environment, const CommOptions& comm_options) -> Group {
    const auto rank = static_cast<size_t>(environment.rank);
    RunStore store = join_run_store(environment, comm_options.timeout());
    const HostRanks::Meeting meeting = HostRanks::meet(environment, store, options[rank]);
    found[rank] = meeting.apart.empty() ? meeting.obstacle : meeting.apart;
    Group communicator;
    if (found[rank].empty()) {
      communicator = connect_group({meeting.ranks, {.timeout = comm_options.timeout()}},
                                   run_identity(environment), "run");
    }
    leave_store(store, environment);
    if (communicator) body(*communicator);
    return nullptr;
  };
  testing::run_connected_ranks({.world_size = static_cast<int>(options.size()), .queued = false}, connect,
                               [](Group&) {});
  return found;
}

TEST(ShmCommunicator, SaysOnAllRanksWhyTheyCannotShareMemory) {
  HostRanks::Options here, other_host = here, other_container = here, huge = here;
  other_host.identity.boot_id = "another";
  other_container.identity.pid_namespace = "pid:[1]";
  huge.segment_bytes = INT64_MAX >> 21 << 21;
  const std::pair<HostRanks::Options, const char*> cases[] = {
      {other_host, "ranks 0 and 2 are on different hosts"},
      {other_container, "ranks 0 and 2 are in different containers"},
      {huge, "on rank 2 "}};
  for (const auto& [options, text] : cases) {
    for (const std::string& obstacle : obstacles({here, here, options}, [](Communicator&) { FAIL(); })) {
      EXPECT_THAT(obstacle, HasSubstr(text));
    }
  }
}

TEST(ShmCommunicator, TakesOrdinaryMemoryWhenSharedMemoryIsUsedUp) {
  HostRanks::Options small;
  small.segment_bytes = SharedSegment::kControlBytes + (8 << 20);
  obstacles({small, small}, [](Communicator& communicator) {
    at::Tensor all = communicator.allocate(6 << 20, at::kFloat);
    all.fill_(communicator.rank() + 1);
    communicator.all_reduce(all, ReduceOp::kSum, {.unit = "test"})->wait();
    EXPECT_TRUE(all.eq(3).all().item<bool>());
    communicator.barrier({.unit = "end"});
  });
}

std::vector<int> codes_after(int signal, double timeout_seconds, double most_seconds) {
  return testing::codes_of_processes(
      testing::connect_over_shm,
      {.world_size = 3, .timeout_seconds = timeout_seconds, .signal = signal, .most_seconds = most_seconds});
}

TEST(ShmProcesses, NoticeAKilledOneSoon) {
  const int lost = static_cast<int>(ErrorKind::kPeerLost);
  // It is a zombie meanwhile: nobody has asked for its exit code yet.
  EXPECT_EQ(codes_after(SIGKILL, 60, 2), (std::vector<int>{lost, lost, 128 + SIGKILL}));
}

/// Open descriptors that watch processes.
int watched_processes() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    count += std::filesystem::read_symlink(entry.path(), error).string().find("pidfd") != std::string::npos;
  }
  return count;
}

TEST(ShmProcesses, WatchEachOtherUntilTheGroupEnds) {
  const int port = testing::free_port();
  std::vector<pid_t> pids;
  for (int rank = 0; rank < 3; ++rank) {
    pids.push_back(::fork());
    if (pids.back() != 0) continue;
    int code = 99;
    try {
      auto communicator = testing::connect_over_shm({rank, 3, rank, 3, "127.0.0.1", port}, {});
      const int during = watched_processes();
      communicator->barrier({.unit = "test"});
      communicator.reset();
      code = during == 2 ? watched_processes() : 98;
    } catch (const std::exception&) {
    }
    std::_Exit(code);
  }
  for (pid_t pid : pids) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    EXPECT_EQ(WEXITSTATUS(status), 0) << "descriptors that are left, or 98 if there were none before";
  }
}

TEST(ShmProcesses, GiveUpOnAStoppedOneWhenTheTimeIsUp) {
  const int timeout = static_cast<int>(ErrorKind::kTimeout);
  EXPECT_EQ(codes_after(SIGSTOP, 1, 4), (std::vector<int>{timeout, timeout, 128 + SIGKILL}));
}

}  // namespace
}  // namespace fsdp::comm
