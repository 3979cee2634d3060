// Several launchers of one run, on this machine: each is a node. tests/e2e has them on hosts of their own.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/util/error.h"
#include "support/launched_nodes.h"
#include "support/run_program.h"
#include "support/temporary_folder.h"
#include "tools/launch/endpoint.h"

namespace fsdp::launch {
namespace {

using ::testing::AllOf;
using testing::eventually;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
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
      start_static(0, 2, "echo token $FSDP_LAUNCH_TOKEN", {"--rdzv-conf", concat("token_file=", file)});
  ASSERT_TRUE(eventually([&] { return std::filesystem::exists(file); }));
  EXPECT_EQ(std::filesystem::status(file).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  const ProgramResult without = start_static(1, 2, "true", {"--rdzv-conf", "join_timeout=1"},
                                             {.env = {{"FSDP_LAUNCH_TOKEN", "another"}}})
                                    .wait();
  EXPECT_EQ(without.exit_code, 2);
  EXPECT_THAT(without.err,
              HasSubstr("so its token is another one; set the same FSDP_LAUNCH_TOKEN on all nodes"));
  EXPECT_TRUE(first.wait_for("refused a connection from 127.0.0.1: it does not know the run's token"));
  RunningProgram& second =
      start_static(1, 2, "true", {}, {.env = {{"FSDP_LAUNCH_TOKEN", folder.read("token")}}});
  EXPECT_EQ(first.wait().exit_code, 0);
  EXPECT_EQ(second.wait().exit_code, 0);
  EXPECT_EQ(first.out(), "[rank0] token\n");
  ::chmod(file.c_str(), 0644);
  const ProgramResult open = start_static(0, 2, "true", {"--rdzv-conf", concat("token_file=", file)}).wait();
  EXPECT_EQ(open.exit_code, 2);
  EXPECT_THAT(open.err, HasSubstr("chmod 600"));
}

TEST_F(MultiNode, NodesWithACommonHomeFolderShareATokenWithoutBeingTold) {
  testing::TemporaryFolder home;
  const testing::RunOptions at_home{.env = {{"XDG_CONFIG_HOME", home.path()}}};
  RunningProgram& second = start_static(1, 2, "true", {}, at_home);
  RunningProgram& first = start_static(0, 2, "true", {}, at_home);
  EXPECT_EQ(first.wait().exit_code, 0) << first.err();
  EXPECT_EQ(second.wait().exit_code, 0) << second.err();
  const std::string file = home.path() / "fsdp" / "launch-token";
  EXPECT_EQ(std::filesystem::status(file).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  EXPECT_EQ(std::filesystem::file_size(file), 32u);
  // Where the home folder is not shared, the remedy is named; or the network is trusted in so many words.
  const testing::RunOptions elsewhere{.env = {{"XDG_CONFIG_HOME", home.path() / "elsewhere"}}};
  RunningProgram& host = start_static(0, 2, "true", {}, at_home);
  const ProgramResult lost =
      start_static(1, 2, "true", {"--rdzv-conf", "join_timeout=0.5"}, elsewhere).wait();
  EXPECT_EQ(lost.exit_code, 6);
  EXPECT_THAT(lost.err,
              AllOf(HasSubstr("there is no token file"), HasSubstr("set the same FSDP_LAUNCH_TOKEN")));
  host.send(SIGTERM);
  EXPECT_EQ(host.wait().exit_code, 143);
  const Options trusting{"--rdzv-conf", "trust_network=true"};
  RunningProgram& third = start_static(0, 2, "true", trusting, at_home);
  EXPECT_EQ(start_static(1, 2, "true", trusting, elsewhere).wait().exit_code, 0);
  EXPECT_EQ(third.wait().exit_code, 0);
}

TEST_F(MultiNode, AStrangerIsToldNothingAndCannotJoinAsASpareNode) {
  RunningProgram& first =
      start_elastic("1:2", "echo ready; sleep 2", {"--rdzv-conf", "last_call_timeout=0.1"});
  ASSERT_TRUE(first.wait_for("ready"));
  const std::string node =
      R"("node":{"host":"evil","pid":1,"node_rank":0,"workers":1,"is_host":false,"address":"","again":false},)"
      R"("terms":{"version":4,"run_id":"run7","min":1,"max":2,"is_static":false,"max_restarts":0,"replica_size":0,)"
      R"("min_replicas":1}})";
  const std::string hello = "{\"type\":\"hello\",\"nonce\":\"00\"}\n";
  // To what is sent at first, and to what is sent after that.
  const auto answers_to = [&](const std::string& text, const std::string& next = "") {
    const int fd = connect_to_port();
    ::send(fd, text.data(), text.size(), MSG_NOSIGNAL);
    std::string answer(4096, '\0');
    answer.resize(static_cast<size_t>(std::max<ssize_t>(0, ::recv(fd, answer.data(), answer.size(), 0))));
    ::send(fd, next.data(), next.size(), MSG_NOSIGNAL);
    std::string rest(4096, '\0');
    const ssize_t count = next.empty() ? 0 : ::recv(fd, rest.data(), rest.size(), 0);
    ::close(fd);
    return answer + (count > 0 ? "told more: " + rest.substr(0, static_cast<size_t>(count)) : "");
  };
  EXPECT_EQ(answers_to("{\"type\":\"join\",\"token\":\"\"," + node + "\n"), "");
  EXPECT_EQ(answers_to("{\"type\":\"join\",\"proof\":\"\"," + node + "\n"), "");
  EXPECT_EQ(answers_to(std::string(300000, '[')), "");
  const std::string nested =
      "{\"type\":\"join\",\"proof\":" + std::string(7000, '[') + std::string(7000, ']') + "}\n";
  for (const std::string& next : {"{\"type\":\"join\",\"proof\":\"\"," + node + "\n", nested, hello}) {
    EXPECT_THAT(answers_to(hello, next),
                MatchesRegex("\\{\"nonce\":\"[0-9a-f]*\",\"type\":\"challenge\",\"version\":4\\}\n"));
  }
  const ProgramResult result = first.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, Not(HasSubstr("has joined")));
}

TEST_F(MultiNode, WhoeverListensInPlaceOfTheHostCannotEndANode) {
  std::optional<Descriptor> listener = listen_at("127.0.0.1", port_);
  ASSERT_TRUE(listener);
  RunningProgram& node = start_static(1, 2, "true");
  const std::string challenge = "{\"type\":\"challenge\",\"version\":4,\"nonce\":\"00\"}\n",
                    ending = R"("proof":"00","why":"leave","verdict":{"exit_code":1,"cause":"leave"}})";
  for (const std::string& text :
       {"{\"type\":\"refuse\"," + ending + "\n", "{\"type\":\"finish\"," + ending + "\n",
        challenge + "{\"type\":\"refuse\"," + ending + "\n",
        challenge + "{\"type\":\"finish\"," + ending + "\n",
        challenge + "{\"type\":\"welcome\",\"silence_seconds\":1," + ending + "\n",
        "{\"type\":" + std::string(7000, '[') + "\n", std::string(1 << 20, '[')}) {
    std::string from;
    std::optional<Descriptor> peer;
    ASSERT_TRUE(eventually([&] { return (peer = accept_from(*listener, from)).has_value(); }));
    ::fcntl(peer->get(), F_SETFL, 0);
    char hello[256];
    EXPECT_GT(::recv(peer->get(), hello, sizeof(hello), 0), 0);
    ::send(peer->get(), text.data(), text.size(), MSG_NOSIGNAL);
    while (::recv(peer->get(), hello, sizeof(hello), 0) > 0) {
    }
  }
  listener.reset();
  EXPECT_EQ(start_static(0, 2, "true").wait().exit_code, 0);
  EXPECT_EQ(node.wait().exit_code, 0) << node.err();
}

TEST_F(MultiNode, EndsWellBesideHundredsOfHostileConnections) {
  RunningProgram& first = start_static(0, 2, kTellPlace + "; sleep 2");
  ::close(connect_to_port());
  std::atomic<bool> ended = false;
  std::vector<std::thread> crowd;
  for (int number = 0; number < 4; ++number) {
    crowd.emplace_back([&, number] {
      const std::string texts[] = {"", std::string(100000, '['), "{\"type\":\"hello\",\"nonce\":\"0\"}\n",
                                   "{\"type\":\"join\"}\n"};
      std::vector<int> open;
      for (size_t i = 0; !ended; ++i) {
        const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        address.sin_port = htons(static_cast<uint16_t>(port_));
        if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
          const std::string& text = texts[(i + static_cast<size_t>(number)) % std::size(texts)];
          ::send(fd, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
        }
        open.push_back(fd);
        if (open.size() < 100) continue;  // 400 of them all the time
        ::close(open.front());
        open.erase(open.begin());
        ::usleep(1000);
      }
      for (const int fd : open) ::close(fd);
    });
  }
  ::usleep(300000);
  RunningProgram& second = start_static(1, 2, kTellPlace + "; sleep 2");
  EXPECT_EQ(second.wait().exit_code, 0) << second.err();
  EXPECT_EQ(first.wait().exit_code, 0) << first.err();
  ended = true;
  for (std::thread& each : crowd) each.join();
  EXPECT_LT(first.err().size(), 20000u) << "refusals are logged with a limit";
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
        "1:3", concat("echo now $GROUP_WORLD_SIZE nodes; while [ ! -e ", end, " ]; do sleep 0.05; done"),
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
