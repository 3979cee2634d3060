#include "comm/make_communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "support/connected_ranks.h"
#include "support/log_lines.h"
#include "util/error.h"

namespace fsdp::comm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using util::Error;
using util::ErrorKind;

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
  EXPECT_EQ(made(Backend::kAuto, {0, 0, 1}),
            Made("gloo", line + "hosts have different numbers of ranks: the host of rank 0 "
                                "has 2, the host of rank 2 has 1\n"));
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
