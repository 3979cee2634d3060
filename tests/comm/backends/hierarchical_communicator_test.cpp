// What is the hierarchical communicator's alone; the promises that it shares with the others are tested in
// communicator_test.cpp and subgroup_test.cpp.

#include "comm/backends/hierarchical_communicator.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <future>
#include <numeric>
#include <thread>

#include "base/util/error.h"
#include "comm/shm/host_ranks.h"
#include "support/connected_ranks.h"
#include "support/process_ranks.h"

namespace fsdp::comm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using util::Error;

using Group = std::shared_ptr<Communicator>;
using Hosts = std::vector<int>;

at::Tensor host_numbers_of(int rank, int64_t numel, at::ScalarType dtype) {
  at::Tensor index = at::arange(numel, at::kDouble) + 1000.0 * rank;
  return (at::sin(index * 12.9898) * (rank % 2 == 0 ? 100.0 : 1.0)).to(dtype);
}

/// By rank inside each host, and then by host in the order of first ranks; halves in float32, rounded once.
at::Tensor reduced_over_hosts(const Hosts& hosts, int64_t numel, at::ScalarType dtype, ReduceOp op) {
  const bool half = dtype == at::kBFloat16 || dtype == at::kHalf;
  const auto both = [op](const at::Tensor& a, const at::Tensor& b) {
    if (!a.defined()) return b;
    return op == ReduceOp::kSum ? a + b : at::maximum(a, b);
  };
  at::Tensor all;
  std::vector<int> every(hosts.size());
  std::iota(every.begin(), every.end(), 0);
  for (const std::vector<int>& ranks : host_layout(hosts, every).members) {
    at::Tensor sum;
    for (int rank : ranks) sum = both(sum, host_numbers_of(rank, numel, dtype).to(half ? at::kFloat : dtype));
    all = both(all, sum);
  }
  return all.to(dtype);
}

struct HostSetting {
  const char* name;
  Hosts hosts;  ///< of each rank
};

class HierarchicalResults : public ::testing::TestWithParam<HostSetting> {
 protected:
  /// In the communicator's memory or in ordinary memory, not aligned.
  static at::Tensor filled(Communicator& communicator, bool shared, const at::Tensor& values) {
    const int64_t numel = values.numel() + 1;
    at::Tensor memory =
        shared ? communicator.allocate(numel, values.scalar_type()) : at::empty({numel}, values.options());
    return memory.narrow(0, 1, values.numel()).copy_(values);
  }

  static void check_all(Communicator& communicator, bool shared, int64_t numel, at::ScalarType dtype) {
    const Hosts& hosts = GetParam().hosts;
    const int rank = communicator.rank(), world = communicator.world_size();
    at::Tensor mine = host_numbers_of(rank, numel, dtype);
    std::vector<at::Tensor> everyone;
    for (int r = 0; r < world; ++r) everyone.push_back(host_numbers_of(r, numel, dtype));

    at::Tensor all = filled(communicator, shared, at::zeros({numel * world}, dtype));
    communicator.all_gather(all, filled(communicator, shared, mine), {.unit = "test"})->wait();
    ASSERT_TRUE(at::equal(all, at::cat(everyone))) << "all_gather";
    at::Tensor in_place = filled(communicator, shared, at::zeros({numel * world}, dtype));
    at::Tensor own = in_place.narrow(0, rank * numel, numel).copy_(mine);
    communicator.all_gather(in_place, own, {.unit = "test"})->wait();
    ASSERT_TRUE(at::equal(in_place, all)) << "all_gather in place";

    at::Tensor input = filled(communicator, shared, host_numbers_of(rank, numel * world, dtype));
    at::Tensor part = filled(communicator, shared, mine);
    at::Tensor expected =
        reduced_over_hosts(hosts, numel * world, dtype, ReduceOp::kSum).narrow(0, rank * numel, numel);
    communicator.reduce_scatter(part, input, {.unit = "test"})->wait();
    ASSERT_TRUE(at::equal(part, expected)) << "reduce_scatter";
    ASSERT_TRUE(at::equal(input, host_numbers_of(rank, numel * world, dtype))) << "reduce_scatter's input";
    at::Tensor anywhere = input.narrow(0, (world - 1 - rank) * numel, numel);
    communicator.reduce_scatter(anywhere, input, {.unit = "test"})->wait();
    ASSERT_TRUE(at::equal(anywhere, expected)) << "reduce_scatter into its input";

    for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
      at::Tensor tensor = filled(communicator, shared, mine);
      communicator.all_reduce(tensor, op, {.unit = "test"})->wait();
      ASSERT_TRUE(at::equal(tensor, reduced_over_hosts(hosts, numel, dtype, op))) << "all_reduce";
    }
    for (int root = 0; root < world; ++root) {
      at::Tensor sent = filled(communicator, shared, mine);
      communicator.broadcast(sent, root, {.unit = "test"})->wait();
      ASSERT_TRUE(at::equal(sent, everyone[static_cast<size_t>(root)])) << "broadcast";
    }
    at::Tensor shifted = filled(communicator, shared, at::zeros({numel}, dtype));
    communicator.shift(shifted, filled(communicator, shared, mine), {.unit = "test"})->wait();
    ASSERT_TRUE(at::equal(shifted, everyone[static_cast<size_t>((rank + world - 1) % world)])) << "shift";
    communicator.barrier({.unit = "test"});
  }
};

TEST_P(HierarchicalResults, AreThoseOfTheDocumentedOrderOfSums) {
  const Hosts& hosts = GetParam().hosts;
  const int world = static_cast<int>(hosts.size());
  testing::run_connected_ranks(
      {.world_size = world, .timeout_seconds = 60, .queued = false}, testing::connect_over_hosts(hosts),
      [&](Group& communicator) {
        at::set_num_threads(1);
        EXPECT_EQ(communicator->backend_name(), "hierarchical");
        for (auto dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble, at::kLong, at::kByte}) {
          for (int64_t numel : {1, 2, 3, 1000, 8191, 8193, 50'001}) {
            if (numel > 10'000 && c10::elementSize(dtype) > 4) continue;
            for (bool shared : {true, false}) {
              SCOPED_TRACE(concat(c10::toString(dtype), " ", numel, shared ? " shared" : ""));
              check_all(*communicator, shared, numel, dtype);
              if (::testing::Test::HasFatalFailure()) return;
            }
          }
        }
      });
}

INSTANTIATE_TEST_SUITE_P(
    All, HierarchicalResults,
    ::testing::Values(HostSetting{"2x2", {0, 0, 1, 1}}, HostSetting{"3x2", {0, 0, 1, 1, 2, 2}},
                      HostSetting{"2x3", {0, 0, 0, 1, 1, 1}}, HostSetting{"DealtOut", {0, 1, 2, 0, 1, 2}},
                      HostSetting{"Mixed", {1, 0, 0, 1}}, HostSetting{"Staggered", {0, 0, 1, 0, 1, 1}}),
    [](const auto& info) { return info.param.name; });

TEST(HierarchicalCommunicator, ReducesTensorsOfAnyShape) {
  testing::run_ranks_over("hierarchical2", {.world_size = 4}, [](Group& communicator) {
    for (int64_t columns : {7, 200}) {
      at::Tensor transposed = at::arange(100 * columns, at::kFloat).view({100, columns}).t();
      at::Tensor expected = transposed * 4;
      communicator->all_reduce(transposed, ReduceOp::kSum, {.unit = "test"})->wait();
      EXPECT_TRUE(at::equal(transposed, expected));
    }
  });
}

// Results are used and overwritten at once, by ranks that are now early and now late.
TEST(HierarchicalCommunicator, LetsBuffersBeUsedAgainAtOnce) {
  testing::run_ranks_over("direct_hierarchical2", {.world_size = 4, .timeout_seconds = 60}, [](Group& group) {
    const int rank = group->rank();
    at::set_num_threads(1);
    for (int64_t numel : {16, 20'000}) {
      at::Tensor all = group->allocate(4 * numel, at::kFloat), part = at::empty({numel});
      at::Tensor own = all.narrow(0, rank * numel, numel), small = at::empty({numel / 2});
      for (int round = 0; round < 60; ++round) {
        own.fill_(round * 4 + rank);
        group->all_gather(all, own, {.unit = "test"})->wait();
        for (int r = 0; r < 4; ++r) ASSERT_EQ(all[(r + 1) * numel - 1].item<float>(), round * 4 + r);
        all.fill_(round + rank);
        group->reduce_scatter(part, all, {.unit = "test"})->wait();
        ASSERT_EQ(part[numel - 1].item<float>(), 4 * round + 6);
        all.fill_(-1);
        small.fill_(rank == round % 4 ? round : 0);
        group->all_reduce(small, ReduceOp::kSum, {.unit = "test"})->wait();
        ASSERT_EQ(small[7].item<float>(), round);
        small.fill_(rank);
        group->broadcast(small, round % 4, {.unit = "test"})->wait();
        ASSERT_EQ(small[0].item<float>(), round % 4);
        all.fill_(rank);
        group->shift(part, all.narrow(0, 0, numel), {.unit = "test"})->wait();
        ASSERT_EQ(part[numel - 1].item<int>(), (rank + 3) % 4);
      }
    }
  });
}

TEST(HierarchicalCommunicator, SubgroupsAreOfTheBackendThatFitsTheirPlaces) {
  testing::run_ranks_over("hierarchical3", {.world_size = 6}, [](Group& world) {
    const int rank = world->rank(), host = rank / 2, place = rank % 2;
    const auto check = [&](const Group& group, const char* backend) {
      EXPECT_EQ(group->backend_name(), backend);
      at::Tensor sum = group->allocate(9, at::kFloat).fill_(group->rank() + 1);
      group->all_reduce(sum, ReduceOp::kSum, {.unit = "test"})->wait();
      EXPECT_EQ(sum[8].item<int>(), group->world_size() * (group->world_size() + 1) / 2);
    };
    check(world->subgroup("data", {2 * host, 2 * host + 1}), "shm");
    check(world->subgroup("dcn", {place, 2 + place, 4 + place}), "gloo");
    if (rank > 0) check(world->subgroup("uneven", {1, 2, 3, 4, 5}), "gloo");
    if (rank > 1) {
      Group even = world->subgroup("even", {2, 3, 4, 5});
      check(even, "hierarchical");
      check(even->subgroup("inside", {(rank - 2) / 2 * 2, (rank - 2) / 2 * 2 + 1}), "shm");
      check(even->subgroup("across", {place, 2 + place}), "gloo");
    }
    for (int again = 0; again < 2; ++again) {
      if (rank < 4) check(world->subgroup("again", {0, 1, 2, 3}), "hierarchical");
    }
    world->barrier({.unit = "end"});
  });
}

/// What each rank of two hosts of two says when `body` throws there; every one must, and again at once.
std::vector<std::string> errors_of(double timeout_seconds, ErrorKind kind,
                                   const std::function<void(Communicator&)>& body) {
  std::vector<std::string> errors(4);
  std::atomic<int> left = 0;
  testing::run_ranks_over("direct_hierarchical2", {.world_size = 4, .timeout_seconds = timeout_seconds},
                          [&](Group& group) {
                            for (int again = 0; again < 2; ++again) {
                              try {
                                body(*group);
                              } catch (const Error& error) {
                                EXPECT_EQ(error.kind(), kind) << error.what();
                                std::string& first = errors[static_cast<size_t>(group->rank())];
                                if (again == 0) {
                                  first = error.what();
                                } else {
                                  EXPECT_EQ(first, error.what());
                                }
                              }
                            }
                            // Nobody's connections close before all have seen what there is to see.
                            for (++left; left < 4;) std::this_thread::sleep_for(std::chrono::milliseconds(5));
                          });
  return errors;
}

TEST(HierarchicalFailures, APeerThatDoesNotComeIsATimeoutThatAllNameAlike) {
  const auto errors = errors_of(2, ErrorKind::kTimeout, [](Communicator& group) {
    if (group.rank() == 3) return;
    at::Tensor value = at::ones({1});
    group.all_reduce(value, ReduceOp::kSum, {.unit = "loss", .pass = "forward"})->wait();
  });
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(errors[static_cast<size_t>(rank)],
                AllOf(HasSubstr(concat("all_reduce of loss (forward) failed on rank ", rank,
                                       " of 4: no result within 2 s")),
                      HasSubstr("no answer from rank 3 (")));
  }
  EXPECT_EQ(errors[3], "");
}

TEST(HierarchicalFailures, CollectivesThatDifferInsideAHostEndAllRanks) {
  std::vector<std::string> errors(4);
  std::atomic<int> left = 0;
  const auto begin = std::chrono::steady_clock::now();
  testing::run_ranks_over("direct_hierarchical2", {.world_size = 4, .timeout_seconds = 60},
                          [&](Group& group) {
                            at::Tensor value = at::ones({group->rank() == 1 ? 2 : 1});
                            try {
                              group->all_reduce(value, ReduceOp::kSum, {.unit = "loss"})->wait();
                            } catch (const Error& error) {
                              errors[static_cast<size_t>(group->rank())] = error.what();
                            }
                            for (++left; left < 4;) std::this_thread::sleep_for(std::chrono::milliseconds(5));
                          });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  for (const std::string& error : errors) {
    EXPECT_THAT(error, AllOf(HasSubstr("all_reduce of loss (other) failed on rank "),
                             HasSubstr("is in another collective")));
  }
}

TEST(HierarchicalFailures, CollectivesThatDifferBetweenHostsAreNamedWhenTheTimeIsUp) {
  const auto errors = errors_of(2, ErrorKind::kTimeout, [](Communicator& group) {
    at::Tensor value = at::ones({group.rank() < 2 ? 3 : 5});
    group.all_reduce(value, ReduceOp::kSum, {.unit = group.rank() < 2 ? "loss" : "norm"})->wait();
  });
  EXPECT_THAT(errors[0], AllOf(HasSubstr("all_reduce of loss (other) failed on rank 0 of 4"),
                               HasSubstr("rank 2 is in another collective, all_reduce of norm (other)")));
  EXPECT_THAT(errors[3], HasSubstr("rank 0 is in another collective, all_reduce of loss (other)"));
}

TEST(HierarchicalFailures, NameRanksOfTheWholeRunInSubgroups) {
  std::promise<void> promise;
  std::shared_future<void> seen = promise.get_future().share();
  std::atomic<int> checked = 0;
  testing::run_ranks_over("hierarchical3", {.world_size = 6}, [&](Group& world) {
    if (world->rank() < 2) return seen.wait();  // rank 0 hosts the store
    Group group = world->subgroup("data", {2, 3, 4, 5});
    if (world->rank() == 5) return;  // its connections close
    try {
      group->barrier({.unit = "save"});
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kPeerLost) << error.what();
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr(concat("barrier of save (other) failed on rank ", world->rank(),
                                         " of 6 (group data: ranks 2, 3, 4, 5): ")),
                        HasSubstr("no answer from rank 5 (")));
      if (++checked == 3) promise.set_value();
    }
  });
  EXPECT_EQ(checked, 3);
}

TEST(HierarchicalProcesses, OfAllHostsNoticeAKilledOneSoon) {
  const int lost = static_cast<int>(ErrorKind::kPeerLost);
  EXPECT_EQ(testing::codes_of_processes(testing::connect_over_hosts({0, 0, 1, 1}), {.world_size = 4}),
            (std::vector<int>{lost, lost, lost, 128 + SIGKILL}));
  EXPECT_EQ(testing::codes_of_processes(testing::connect_over_hosts({0, 1, 2, 0, 1, 2}),
                                        {.world_size = 6, .victim = 1, .most_seconds = 4}),
            (std::vector<int>{lost, 128 + SIGKILL, lost, lost, lost, lost}));
}

TEST(HierarchicalProcesses, NoticeThatTheHostOfTheStoreIsKilled) {
  const int lost = static_cast<int>(ErrorKind::kPeerLost);
  EXPECT_EQ(testing::codes_of_processes(testing::connect_over_hosts({0, 0, 1, 1}),
                                        {.world_size = 4, .victim = 0, .most_seconds = 5}),
            (std::vector<int>{128 + SIGKILL, lost, lost, lost}));
}

TEST(HierarchicalProcesses, GiveUpOnAStoppedOneWhenTheTimeIsUp) {
  const int timeout = static_cast<int>(ErrorKind::kTimeout);
  EXPECT_EQ(testing::codes_of_processes(
                testing::connect_over_hosts({0, 0, 1, 1}),
                {.world_size = 4, .timeout_seconds = 1, .signal = SIGSTOP, .most_seconds = 5}),
            (std::vector<int>{timeout, timeout, timeout, 128 + SIGKILL}));
}

}  // namespace
}  // namespace fsdp::comm
