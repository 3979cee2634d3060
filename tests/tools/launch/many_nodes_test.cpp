// Hundreds of nodes of one run, whose launchers are connections of the test. scripts/bench rendezvous has ten
// thousand.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <memory>
#include <string>
#include <vector>

#include "support/free_port.h"
#include "support/node_crowd.h"
#include "support/program_path.h"
#include "support/run_program.h"

namespace fsdp::launch {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::NodeCrowd;
using testing::ProgramResult;
using testing::RunningProgram;

class ManyNodes : public ::testing::Test {
 protected:
  static constexpr int kNodes = 512;

  /// The launcher of node 0, once the others can connect to it.
  RunningProgram& start_host(int workers, const std::string& join_timeout = "60") {
    plan_ = {.port = testing::free_port(), .nodes = kNodes, .workers = workers};
    host_ = std::make_unique<RunningProgram>(
        NodeCrowd::host_command(testing::program_path("fsdp-launch"), plan_, join_timeout));
    EXPECT_TRUE(testing::eventually([this] { return listens(); }));
    crowd_ = std::make_unique<NodeCrowd>(plan_);
    return *host_;
  }
  bool listens() const {
    std::string why;
    const auto socket = start_connecting("127.0.0.1", plan_.port, why);
    pollfd entry{.fd = socket ? socket->get() : -1, .events = POLLOUT, .revents = 0};
    return socket && ::poll(&entry, 1, 1000) == 1 && (entry.revents & (POLLERR | POLLHUP)) == 0;
  }
  void join(int begin, int end) {
    for (int node = begin; node < end; ++node) crowd_->join(node, 1000 + node);
  }
  /// From where all nodes have joined, to the end of the run.
  void expect_a_round() {
    ASSERT_TRUE(crowd_->step_until([this] { return crowd_->started() == kNodes - 1; })) << crowd_->started();
    EXPECT_EQ(crowd_->misplaced(), "");
    crowd_->finish_round();
    ASSERT_TRUE(crowd_->step_until([this] { return crowd_->finished() == kNodes - 1; }))
        << crowd_->finished();
    EXPECT_EQ(crowd_->verdict().exit_code, 0);
    crowd_.reset();
    const ProgramResult result = host_->wait();
    EXPECT_EQ(result.exit_code, 0) << result.err;
  }

  NodeCrowd::Plan plan_;
  std::unique_ptr<RunningProgram> host_;
  std::unique_ptr<NodeCrowd> crowd_;
};

TEST_F(ManyNodes, MeetAndEnd) {
  for (int workers : {1, 8}) {
    start_host(workers);
    join(1, kNodes);
    expect_a_round();
  }
}

TEST_F(ManyNodes, AreNotWaitedForWithoutTheNameOfTheOneThatIsMissing) {
  RunningProgram& host = start_host(1, "2");
  join(1, 300);
  join(301, kNodes);
  ASSERT_TRUE(crowd_->step_until([this] { return crowd_->finished() == kNodes - 2; })) << crowd_->finished();
  EXPECT_EQ(crowd_->started(), 0);
  crowd_.reset();
  const ProgramResult result = host.wait();
  EXPECT_EQ(result.exit_code, 6);
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("for 512 nodes, but only 511 joined"), HasSubstr("; missing: node 300\n")));
  EXPECT_LT(result.err.size(), 2000u) << "hundreds of names help nobody";
}

TEST_F(ManyNodes, MeetDespiteOneThatComesTwiceAndAStrangerWhichAreBothNamed) {
  RunningProgram& host = start_host(1);
  join(1, kNodes - 1);
  crowd_->join(300, 77);
  ASSERT_TRUE(crowd_->step_until([this] { return crowd_->closed() == 1; }));
  EXPECT_THAT(crowd_->refusals(), ElementsAre(AllOf(HasSubstr("node rank 300 has been in use by crowd (pid "),
                                                    HasSubstr("--node-rank of its own"))));
  ASSERT_TRUE(host.wait_for("refused a node at 127.1.1.44 (crowd, pid ")) << host.err();
  crowd_->add_stranger("GET / HTTP/1.1\r");
  ASSERT_TRUE(crowd_->step_until([this] { return crowd_->closed() == 2; }));
  ASSERT_TRUE(
      host.wait_for("connected from 127.2.0.0 to the port where the nodes meet, and sent \"GET / HTTP/1.1"))
      << host.err();
  EXPECT_EQ(crowd_->started(), 0);
  join(kNodes - 1, kNodes);
  expect_a_round();
}

TEST_F(ManyNodes, NamesAStrangerThatDoesNotFinishItsLine) {
  RunningProgram& host = start_host(1);
  std::string why;
  auto torchrun = start_connecting("127.0.0.1", plan_.port, why);
  ASSERT_TRUE(torchrun.has_value()) << why;
  const std::string bytes("\x00\xce\xf7\x85\x3c", 5);
  ASSERT_TRUE(testing::eventually(
      [&] { return ::send(torchrun->get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == 5; }));
  EXPECT_TRUE(
      host.wait_for("connected from 127.0.0.1 to the port where the nodes meet, and sent \"\\x00\\xce"))
      << host.err();
}

TEST(ManyNodesWithFewFiles, AreRefusedWithTheirNumberTheLimitAndTheRemedy) {
  const ProgramResult result = testing::run(
      {"/bin/sh", "-c",
       "ulimit -n 300; exec \"$0\" --nnodes 1000 --node-rank 0 --master-port \"$1\" -- /bin/true",
       testing::program_path("fsdp-launch"), std::to_string(testing::free_port())});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, AllOf(HasSubstr("1000 nodes may meet here (--nnodes)"),
                                HasSubstr("may have only 300 (ulimit -Hn)"), HasSubstr("LimitNOFILE=1")));
}

}  // namespace
}  // namespace fsdp::launch
