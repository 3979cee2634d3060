// Several launchers of one run, on this machine: each is a node. tests/e2e has them on hosts of their own.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "support/launched_nodes.h"
#include "support/run_program.h"
#include "support/temporary_folder.h"
#include "util/error.h"

namespace fsdp::launch {
namespace {

using ::testing::AllOf;
using testing::eventually;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::process_runs;
using testing::ProgramResult;
using testing::RunningProgram;

using testing::LaunchedNodes;

using Options = LaunchedNodes::Options;

class MultiNode : public LaunchedNodes {};

const std::string kTellPlace = "echo $RANK/$WORLD_SIZE local $LOCAL_RANK/$LOCAL_WORLD_SIZE group $GROUP_RANK";

TEST_F(MultiNode, NumbersRanksOverNodesThatJoinInAnyOrder) {
  RunningProgram& second = start_static(1, 2, kTellPlace, {"--nproc-per-node", "2"});
  RunningProgram& first = start_static(0, 2, kTellPlace);
  EXPECT_EQ(first.wait().exit_code, 0);
  EXPECT_EQ(second.wait().exit_code, 0);
  EXPECT_EQ(first.out(), "[rank0] 0/3 local 0/1 group 0\n");
  EXPECT_THAT(second.out(), AllOf(HasSubstr("[rank1] 1/3 local 0/2 group 1\n"),
                                  HasSubstr("[rank2] 2/3 local 1/2 group 1\n")));
}

TEST_F(MultiNode, ShowsTheSameCauseOnAllNodes) {
  RunningProgram& first = start_static(0, 2, "exec sleep 100");
  RunningProgram& second = start_static(1, 2, "sleep 0.2; echo no such file >&2; exit 7");
  for (RunningProgram* node : {&first, &second}) {
    const ProgramResult result = node->wait();
    EXPECT_EQ(result.exit_code, 7);
    EXPECT_THAT(result.err, AllOf(HasSubstr("last output of rank 1:\n    no such file\n"),
                                  HasSubstr("failed first: it ended with exit code 7\n")));
    EXPECT_LT(result.seconds, 20);
  }
}

TEST_F(MultiNode, StartsAllNodesAgain) {
  const std::string script =
      "echo $RANK in $TORCHELASTIC_RESTART_COUNT at $MASTER_PORT; [ $TORCHELASTIC_RESTART_COUNT = 1 ] && "
      "exit 0; [ $RANK = 1 ] && exit 3; exec sleep 100";
  RunningProgram& first = start_static(0, 2, script, {"--max-restarts", "1"});
  RunningProgram& second = start_static(1, 2, script, {"--max-restarts", "1"});
  EXPECT_EQ(first.wait().exit_code, 0);
  EXPECT_EQ(second.wait().exit_code, 0);
  EXPECT_THAT(first.out(), HasSubstr("[rank0] 0 in 1"));
  EXPECT_THAT(second.out(), HasSubstr("[rank1] 1 in 1"));
  EXPECT_THAT(first.err(), HasSubstr("restart 1 of 1"));
}

TEST_F(MultiNode, FindsAKilledLauncherAtOnceAndLeavesNoWorkerOfIt) {
  RunningProgram& first = start_static(0, 2, "echo pid $$; exec sleep 100");
  RunningProgram& second = start_static(1, 2, "echo pid $$; exec sleep 100");
  ASSERT_TRUE(first.wait_for("pid ") && second.wait_for("pid "));
  second.send(SIGKILL);
  const ProgramResult result = first.wait();
  second.wait();
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_THAT(result.err, AllOf(HasSubstr("error: lost node 1 ("), HasSubstr("the connection was closed")));
  for (RunningProgram* node : {&first, &second}) {
    const pid_t worker = printed_pid(node->out());
    EXPECT_TRUE(eventually([&] { return !process_runs(worker); }));
  }
}

TEST_F(MultiNode, EndsWhenTheHostIsKilled) {
  RunningProgram& first = start_static(0, 2, "echo pid $$; exec sleep 100");
  RunningProgram& second = start_static(1, 2, "echo pid $$; exec sleep 100");
  ASSERT_TRUE(first.wait_for("pid ") && second.wait_for("pid "));
  first.send(SIGKILL);
  const ProgramResult result = second.wait();
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_THAT(result.err, HasSubstr("error: lost the node where all meet (127.0.0.1:"));
  EXPECT_FALSE(process_runs(printed_pid(result.out)));
}

TEST_F(MultiNode, FindsAFrozenLauncherByItsHeartbeats) {
  const Options fast{"--rdzv-conf", "keep_alive_interval=0.1,keep_alive_max_attempt=10"};
  RunningProgram& first = start_static(0, 2, "echo pid $$; exec sleep 100", fast);
  RunningProgram& second = start_static(1, 2, "echo pid $$; exec sleep 100", fast);
  ASSERT_TRUE(first.wait_for("pid ") && second.wait_for("pid "));
  second.send(SIGSTOP);
  const ProgramResult result = first.wait();
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_THAT(result.err, AllOf(HasSubstr("error: lost node 1 ("), HasSubstr("no heartbeat for 1.")));
  // When it goes on, it finds that the run has gone on without it.
  second.send(SIGCONT);
  EXPECT_EQ(second.wait().exit_code, 5);
}

TEST_F(MultiNode, NamesTheNodesThatNeverCame) {
  const Options patience{"--rdzv-conf", "join_timeout=0.5"};
  RunningProgram& host = start_static(0, 3, "true", patience);
  const ProgramResult result = host.wait();
  EXPECT_EQ(result.exit_code, 6);
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("for 3 nodes, but only 1 joined"), HasSubstr("missing: node 1, node 2")));
  const ProgramResult alone = start_static(1, 3, "true", patience).wait();
  EXPECT_EQ(alone.exit_code, 6);
  EXPECT_THAT(alone.err, AllOf(HasSubstr("Connection refused"), HasSubstr("waited 0.")));
}

TEST_F(MultiNode, RefusesANodeThatComesTwiceOrWithOtherTerms) {
  RunningProgram& first = start_static(0, 2, "true");
  ASSERT_TRUE(eventually([&] { return ::close(connect_to_port()) == 0; }));
  const ProgramResult other = start_static(1, 2, "true", {"--max-restarts", "1"}).wait();
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_THAT(other.err, HasSubstr("started with --max-restarts 1, the run with 0"));
  RunningProgram& again = start_static(1, 3, "true");
  EXPECT_EQ(again.wait().exit_code, 2);
  EXPECT_THAT(again.err(), HasSubstr("--nnodes 3:3, the run with 2:2"));
  RunningProgram& second = start_static(1, 2, "echo ready; sleep 2");
  ASSERT_TRUE(second.wait_for("ready"));
  const ProgramResult twin = start_static(1, 2, "true").wait();
  EXPECT_EQ(twin.exit_code, 2);
  EXPECT_THAT(twin.err, HasSubstr("node rank 1 has been in use by"));
  EXPECT_EQ(second.wait().exit_code, 0);
  EXPECT_EQ(first.wait().exit_code, 0);
}

TEST_F(MultiNode, NamesAPortThatIsInUse) {
  RunningProgram& first = start_static(0, 2, "true");
  ::close(connect_to_port());
  const ProgramResult second = start_static(0, 2, "true").wait();
  EXPECT_EQ(second.exit_code, 2);
  EXPECT_THAT(second.err, AllOf(HasSubstr("the port is in use"), HasSubstr(std::to_string(port_))));
  first.send(SIGTERM);
  EXPECT_EQ(first.wait().exit_code, 143);
  EXPECT_THAT(first.err(), HasSubstr("was told to stop by SIGTERM while the nodes were joining"));
}

TEST_F(MultiNode, GoesOnWhateverStrangersSendToThePort) {
  RunningProgram& first = start_static(0, 2, kTellPlace);
  const int text = connect_to_port(), flood = connect_to_port(), silent = connect_to_port(),
            json = connect_to_port();
  const std::string request = "GET / HTTP/1.1\r\n\r\n", bytes(200000, '\xff'),
                    order = "{\"type\":\"round_ended\",\"ends\":[]}\n{\"type\":\"join\",\"node\":7}\n";
  for (const auto& [fd, content] :
       {std::pair(text, &request), std::pair(flood, &bytes), std::pair(json, &order)}) {
    ::send(fd, content->data(), content->size(), MSG_NOSIGNAL);
  }
  ASSERT_TRUE(first.wait_for("a program other than fsdp-launch connected from 127.0.0.1"));
  char closed = 0;
  EXPECT_LE(::recv(text, &closed, 1, 0), 0);
  RunningProgram& second = start_static(1, 2, kTellPlace);
  EXPECT_EQ(first.wait().exit_code, 0);
  EXPECT_EQ(second.wait().exit_code, 0);
  for (int fd : {text, flood, silent, json}) ::close(fd);
}

TEST_F(MultiNode, AsksForTheToken) {
  testing::TemporaryFolder folder;
  const std::string file = folder.path() / "token";
  RunningProgram& first =
      start_static(0, 2, "echo token $FSDP_LAUNCH_TOKEN", {"--rdzv-conf", util::concat("token_file=", file)});
  ASSERT_TRUE(eventually([&] { return std::filesystem::exists(file); }));
  EXPECT_EQ(std::filesystem::status(file).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  const ProgramResult without = start_static(1, 2, "true").wait();
  EXPECT_EQ(without.exit_code, 2);
  EXPECT_THAT(without.err, HasSubstr("its token is not the run's"));
  RunningProgram& second =
      start_static(1, 2, "true", {}, {.env = {{"FSDP_LAUNCH_TOKEN", folder.read("token")}}});
  EXPECT_EQ(first.wait().exit_code, 0);
  EXPECT_EQ(second.wait().exit_code, 0);
  EXPECT_EQ(first.out(), "[rank0] token\n");
  ::chmod(file.c_str(), 0644);
  const ProgramResult open =
      start_static(0, 2, "true", {"--rdzv-conf", util::concat("token_file=", file)}).wait();
  EXPECT_EQ(open.exit_code, 2);
  EXPECT_THAT(open.err, HasSubstr("chmod 600"));
}

TEST_F(MultiNode, StopsAllNodesWhenOneIsToldTo) {
  RunningProgram& first = start_static(0, 2, "echo ready; exec sleep 100");
  RunningProgram& second = start_static(1, 2, "echo ready; exec sleep 100");
  ASSERT_TRUE(first.wait_for("ready") && second.wait_for("ready"));
  second.send(SIGTERM);
  EXPECT_EQ(first.wait().exit_code, 143);
  EXPECT_EQ(second.wait().exit_code, 143);
}

TEST_F(MultiNode, ElasticRunGrowsAndShrinks) {
  const Options quick{"--rdzv-conf", "last_call_timeout=0.3"};
  testing::TemporaryFolder folder;
  const std::string end = folder.path() / "end";
  const auto node = [&]() -> RunningProgram& {
    return start_elastic(
        "1:3",
        util::concat("echo now $GROUP_WORLD_SIZE nodes; while [ ! -e ", end, " ]; do sleep 0.05; done"),
        quick);
  };
  RunningProgram& first = node();
  ASSERT_TRUE(first.wait_for("now 1 nodes"));
  RunningProgram& second = node();
  ASSERT_TRUE(first.wait_for("now 2 nodes"));
  ASSERT_TRUE(second.wait_for("now 2 nodes"));
  second.send(SIGTERM);
  EXPECT_EQ(second.wait().exit_code, 143);
  ASSERT_TRUE(first.wait_for("now 1 nodes", 2));
  folder.write("end", "");
  EXPECT_EQ(first.wait().exit_code, 0);
  EXPECT_THAT(first.err(),
              AllOf(HasSubstr("has joined"), HasSubstr("a node has left"), Not(HasSubstr("restart "))));
}

TEST_F(MultiNode, ElasticNodesOfOneMachineMeetThoughNoneCouldListenAtFirst) {
  const int holder = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port_));
  ASSERT_EQ(::bind(holder, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  RunningProgram& first = start_elastic("2", "echo ready");
  RunningProgram& second = start_elastic("2", "echo ready");
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  ::close(holder);
  for (RunningProgram* node : {&first, &second}) {
    const ProgramResult result = node->wait();
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_LT(result.seconds, 10);
  }
}

TEST_F(MultiNode, ReplacesAKilledNodeByASpareOne) {
  const std::string script =
      "echo $GROUP_RANK in $TORCHELASTIC_RESTART_COUNT; [ $TORCHELASTIC_RESTART_COUNT "
      "= 1 ] && exit 0; exec sleep 100";
  const Options one{"--max-restarts", "1"};
  RunningProgram& first = start_elastic("2", script, one);
  RunningProgram& second = start_elastic("2", script, one);
  ASSERT_TRUE(first.wait_for(" in 0") && second.wait_for(" in 0"));
  RunningProgram& spare = start_elastic("2", script, one);
  ASSERT_TRUE(spare.wait_for("this one waits in case one is lost"));
  // Which of the first two is the host depends on who came first.
  RunningProgram& other = first.out().find("0 in 0") == std::string::npos ? first : second;
  RunningProgram& host = &other == &first ? second : first;
  other.send(SIGKILL);
  EXPECT_EQ(host.wait().exit_code, 0);
  EXPECT_EQ(spare.wait().exit_code, 0);
  EXPECT_THAT(spare.out(), HasSubstr("1 in 1"));
}

}  // namespace
}  // namespace fsdp::launch
