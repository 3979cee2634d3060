#include "comm/backends/make_communicator.h"

#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/util/error.h"
#include "support/connected_ranks.h"
#include "support/log_lines.h"

namespace fsdp::comm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using util::Error;

using Group = std::shared_ptr<Communicator>;
using Hosts = std::vector<int>;

/// The backend that make_communicator() gives ranks on these hosts, and what it logs. The launcher says that
/// they are on so many nodes.
std::pair<std::string, std::string> made(Backend backend, const Hosts& hosts, int nodes = 1) {
  std::string name;
  const auto connect = [&](LaunchEnvironment environment, CommOptions options) {
    environment.local_world_size = environment.world_size / nodes;
    options.backend = backend;
    const int host = hosts[static_cast<size_t>(environment.rank)];
    return make_communicator(environment, options, nullptr, testing::pretended_host(host));
  };
  const std::string lines = testing::log_lines([&] {
    testing::run_connected_ranks(
        {.world_size = static_cast<int>(hosts.size()), .queued = false}, connect, [&](Group& communicator) {
          if (communicator->rank() == 0) name = communicator->backend_name();
          EXPECT_EQ(communicator->common_memory() != nullptr, communicator->backend_name() == "shm");
          communicator->barrier({.unit = "end"});
        });
  });
  return {name, lines};
}

TEST(MakeCommunicator, TakesWhatFitsThePlacesOfRanks) {
  const std::string line = "processes communicate over gloo, not through shared memory: ";
  using Made = std::pair<std::string, std::string>;
  EXPECT_EQ(made(Backend::kAuto, {0, 0, 0}), Made("shm", ""));
  EXPECT_EQ(made(Backend::kAuto, {0, 0}, 2), Made("shm", "")) << "two launchers on one host";
  EXPECT_EQ(made(Backend::kShm, {0, 0}), Made("shm", ""));
  EXPECT_EQ(made(Backend::kGloo, {0, 0}), Made("gloo", ""));
  EXPECT_EQ(made(Backend::kAuto, {0, 0, 1, 1}, 2), Made("hierarchical", ""));
  EXPECT_EQ(made(Backend::kHierarchical, {0, 1, 0, 1}), Made("hierarchical", ""));
  EXPECT_EQ(made(Backend::kGloo, {0, 0, 1, 1}), Made("gloo", ""));
  EXPECT_EQ(made(Backend::kAuto, {0, 1}), Made("gloo", line + "every rank has a host to itself\n"));
  EXPECT_EQ(
      made(Backend::kAuto, {0, 0, 1}),
      Made("gloo",
           "processes communicate over gloo, and in groups on one host through shared memory: hosts have "
           "different numbers of ranks: the host of rank 0 has 2, the host of rank 2 has 1\n"));
}

TEST(MakeCommunicator, GroupsOfUnevenHostsTakeWhatFitsTheirOwnPlaces) {
  const auto connect = [](const LaunchEnvironment& environment, const CommOptions& options) {
    constexpr int kHosts[] = {0, 0, 1, 1, 1};
    return make_communicator(environment, options, nullptr,
                             testing::pretended_host(kHosts[environment.rank]));
  };
  testing::run_connected_ranks({.world_size = 5, .queued = false}, connect, [](Group& all) {
    EXPECT_EQ(all->backend_name(), "gloo");
    const auto expect = [&](const std::vector<int>& ranks, const std::string& backend) {
      if (std::ranges::find(ranks, all->rank()) == ranks.end()) return;
      const auto group = all->subgroup("group", ranks);
      EXPECT_EQ(group->backend_name(), backend);
      at::Tensor sum = at::full({3}, all->rank(), at::kFloat);
      group->all_reduce(sum, ReduceOp::kSum, {.unit = "test"})->synchronize();
      EXPECT_TRUE(sum.eq(std::accumulate(ranks.begin(), ranks.end(), 0)).all().item<bool>());
    };
    expect({0, 1}, "shm");
    expect({2, 3, 4}, "shm");
    expect({0, 1, 2, 3}, "hierarchical");
    expect({0, 2}, "gloo");
    expect({0, 2, 3}, "gloo");
    all->barrier({.unit = "end"});
  });
}

TEST(MakeCommunicator, RefusesNcclForTensorsInHostMemory) {
  try {
    made(Backend::kNccl, {0, 0});
    FAIL() << "NCCL was accepted on CPUs";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("comm.backend"), HasSubstr("training.device")));
  }
}

TEST(MakeCommunicator, SaysWhyThereIsNoHierarchy) {
  const std::tuple<Backend, Hosts, std::string> cases[] = {
      {Backend::kHierarchical, {0, 0}, "all ranks are on one host"},
      {Backend::kHierarchical, {0, 1}, "every rank has a host to itself"},
      {Backend::kHierarchical, {0, 0, 1}, "the host of rank 0 has 2, the host of rank 2 has 1"},
      {Backend::kShm, {0, 0, 1, 1}, "ranks 0 and 2 are on different hosts"}};
  for (const auto& [backend, hosts, text] : cases) {
    try {
      made(backend, hosts);
      ADD_FAILURE() << "expected an error: " << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr("comm.backend = "), HasSubstr(text), HasSubstr("set it to auto or gloo")));
    }
  }
}

}  // namespace
}  // namespace fsdp::comm
