// Launchers on hosts with addresses of their own.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "support/network_hosts.h"
#include "support/program_path.h"
#include "support/run_program.h"

namespace fsdp::launch {
namespace {

using ::testing::AllOf;
using testing::eventually;
using ::testing::HasSubstr;
using testing::NetworkHosts;
using testing::process_runs;
using testing::ProgramResult;
using testing::RunningProgram;

class Network : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = NetworkHosts::missing(); !why.empty()) GTEST_SKIP() << why;
  }

  /// A static run's launcher on each host, two workers each.
  void start_all(const NetworkHosts& hosts, int count, const std::string& script,
                 const std::vector<std::string>& more = {}) {
    for (int host = 0; host < count; ++host) {
      std::vector<std::string> argv{testing::program_path("fsdp-launch"),
                                    "--nnodes",
                                    std::to_string(count),
                                    "--node-rank",
                                    std::to_string(host),
                                    "--master-addr",
                                    NetworkHosts::address(0),
                                    "--nproc-per-node",
                                    "2"};
      argv.insert(argv.end(), more.begin(), more.end());
      argv.insert(argv.end(), {"--", "/bin/sh", "-c", script});
      nodes_.push_back(std::make_unique<RunningProgram>(hosts.on(host, argv)));
    }
  }

  std::vector<std::unique_ptr<RunningProgram>> nodes_;
};

TEST_F(Network, NodesOfThreeHostsMeet) {
  const NetworkHosts hosts(3);
  start_all(hosts, 3, "echo $RANK of $WORLD_SIZE towards $MASTER_ADDR from $(hostname)");
  for (int host = 0; host < 3; ++host) {
    const ProgramResult result = nodes_[static_cast<size_t>(host)]->wait();
    EXPECT_EQ(result.exit_code, 0) << result.err;
    for (int rank : {2 * host, 2 * host + 1}) {
      EXPECT_THAT(result.out, HasSubstr("[rank" + std::to_string(rank) + "] " + std::to_string(rank) +
                                        " of 6 towards 10.77.0.1 from host" + std::to_string(host)));
    }
  }
}

TEST_F(Network, CauseNamesTheHostOfAnotherNode) {
  const NetworkHosts hosts(2);
  start_all(hosts, 2, "[ $RANK = 3 ] && { echo broken >&2; exit 9; }; exec sleep 100");
  for (auto& node : nodes_) {
    const ProgramResult result = node->wait();
    EXPECT_EQ(result.exit_code, 9);
    EXPECT_THAT(result.err, AllOf(HasSubstr("last output of rank 3:\n    broken\n"),
                                  HasSubstr("on host1) failed first")));
  }
}

TEST_F(Network, CutLinkEndsBothSidesInSeconds) {
  NetworkHosts hosts(2);
  start_all(hosts, 2, "echo pid $$; exec sleep 100",
            {"--rdzv-conf", "keep_alive_interval=0.2,keep_alive_max_attempt=5"});
  for (auto& node : nodes_) ASSERT_TRUE(node->wait_for("pid ", 2));
  hosts.cut_off(1);
  const auto cut_at = std::chrono::steady_clock::now();
  const ProgramResult first = nodes_[0]->wait(), second = nodes_[1]->wait();
  EXPECT_LT(std::chrono::steady_clock::now() - cut_at, std::chrono::seconds(10));
  EXPECT_EQ(first.exit_code, 5);
  EXPECT_EQ(second.exit_code, 5);
  EXPECT_THAT(first.err, AllOf(HasSubstr("lost node 1 (host1, pid"), HasSubstr("no heartbeat for 1.")));
  EXPECT_THAT(second.err, HasSubstr("lost the node where all meet (10.77.0.1:29500): no heartbeat"));
}

TEST_F(Network, SlowLinkLosesNobody) {
  NetworkHosts hosts(2);
  hosts.delay(std::chrono::milliseconds(150));
  start_all(hosts, 2, "sleep 1.5; echo done",
            {"--rdzv-conf", "keep_alive_interval=0.2,keep_alive_max_attempt=5"});
  for (auto& node : nodes_) EXPECT_EQ(node->wait().exit_code, 0) << node->err();
}

TEST_F(Network, AddressOfAnotherHostCannotBeTheMeetingPlaceOfNodeZero) {
  const NetworkHosts hosts(2);
  const ProgramResult result =
      testing::run(hosts.on(0, {testing::program_path("fsdp-launch"), "--nnodes", "2", "--master-addr",
                                NetworkHosts::address(1), "true"}));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("the endpoint must be an address of this node"));
}

}  // namespace
}  // namespace fsdp::launch
