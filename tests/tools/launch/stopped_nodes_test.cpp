// How the nodes of one run end together: the table of who waited for whom, and signals to one of them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>

#include <string>
#include <thread>

#include "base/util/error.h"
#include "support/launched_nodes.h"
#include "support/temporary_folder.h"

namespace fsdp::launch {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::ProgramResult;
using testing::RunningProgram;

class StoppedNodes : public testing::LaunchedNodes {
 protected:
  /// A worker as fsdp-train is: told to stop, it sees to it that all stop, save and end with 75.
  std::string saving_worker() const {
    const std::string stop = folder_.path() / "stop";
    return concat("trap 'touch ", stop, "' TERM; echo ready; while [ ! -e ", stop,
                  " ]; do sleep 0.05; done; exit 75");
  }

  testing::TemporaryFolder folder_;
};

/// A shell function that writes where this worker stands.
const std::string kSay =
    "say() { printf '{\"doing\": \"%s, step 4, for 5.0 s\", \"collective\": \"%s\", \"step\": 4, "
    "\"seconds\": 5, \"collectives\": %s}' \"$1\" \"$2\" $3 > \"$(dirname "
    "$TORCHELASTIC_ERROR_FILE)/activity.json\"; }; ";
const std::string kWait = "say 'in all_gather of a' 'all_gather of a' 9; ";
const std::string kCompute = "say computing '' 9; ";

TEST_F(StoppedNodes, EveryNodeShowsOneTableOfAllRanks) {
  const Options two{"--nproc-per-node", "2"};
  RunningProgram& first = start_static(0, 2, kSay + kWait + "sleep 0.3; exit 6", two);
  RunningProgram& second = start_static(
      1, 2, concat(kSay, "[ $RANK = 2 ] && { ", kCompute, "exec sleep 100; }; ", kWait, "exec sleep 100"),
      two);
  for (RunningProgram* node : {&first, &second}) {
    const ProgramResult result = node->wait();
    EXPECT_EQ(result.exit_code, 6);
    EXPECT_THAT(result.err, HasSubstr("error: state of the workers on all nodes:\n    rank 0 (pid "));
    EXPECT_THAT(result.err,
                HasSubstr("\n    ranks 0, 1 and 3 wait in all_gather of a, step 4, for rank 2, which "
                          "is computing, step 4, for 5.0 s\n"));
    EXPECT_THAT(result.err, HasSubstr("failed first: it ended with exit code 6\n"));
    EXPECT_THAT(result.err, Not(HasSubstr("of this node")));
  }
}

TEST_F(StoppedNodes, TheTableComesWithEachRestart) {
  const Options once{"--max-restarts", "1"};
  RunningProgram& first = start_static(0, 2, kSay + kWait + "exec sleep 100", once);
  RunningProgram& second = start_static(1, 2, kSay + kCompute + "sleep 0.2; exit 6", once);
  for (RunningProgram* node : {&first, &second}) {
    const ProgramResult result = node->wait();
    const std::string sentence = "rank 0 waits in all_gather of a, step 4, for rank 1, which is computing";
    const size_t found = result.err.find(sentence);
    ASSERT_NE(found, std::string::npos) << result.err;
    EXPECT_NE(result.err.find(sentence, found + 1), std::string::npos) << result.err;
  }
}

TEST_F(StoppedNodes, AKilledNodeIsShownAsSilentAndDelaysNothing) {
  RunningProgram& first = start_static(
      0, 2, concat(kSay, "stuck() { ", kWait, "exit 5; }; trap stuck TERM; echo ready; sleep 100 & wait"));
  RunningProgram& second = start_static(1, 2, "echo ready; exec sleep 100");
  ASSERT_TRUE(first.wait_for("ready") && second.wait_for("ready"));
  second.send(SIGKILL);
  const auto killed_at = std::chrono::steady_clock::now();
  const ProgramResult result = first.wait();
  EXPECT_LT(std::chrono::steady_clock::now() - killed_at, std::chrono::seconds(5));
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_THAT(result.err, AllOf(HasSubstr("\n    node 1 ("), HasSubstr("): no report\n"),
                                HasSubstr("rank 0 waits in all_gather of a, step 4, for rank 1 of node 1 ("),
                                HasSubstr("error: lost node 1 (")));
}

TEST_F(StoppedNodes, WithoutTheHostANodeShowsItsOwnWorkers) {
  RunningProgram& first = start_static(0, 2, "echo ready; exec sleep 100");
  RunningProgram& second = start_static(
      1, 2, concat(kSay, "stuck() { ", kWait, "exit 5; }; trap stuck TERM; echo ready; sleep 100 & wait"));
  ASSERT_TRUE(first.wait_for("ready") && second.wait_for("ready"));
  first.send(SIGKILL);
  const ProgramResult result = second.wait();
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_THAT(result.err, HasSubstr("state of the workers on this node, without reports from other "
                                    "nodes:\n    rank 1 (pid "));
}

TEST_F(StoppedNodes, StrangersThatSendWhileTheTableIsExchangedChangeNothing) {
  RunningProgram& first = start_static(0, 2, kSay + kWait + "echo ready; sleep 1; exit 6");
  RunningProgram& second = start_static(1, 2, kSay + kCompute + "exec sleep 100");
  ASSERT_TRUE(first.wait_for("ready"));
  const std::string table = R"({"type":"round_ended","ends":[{"rank":1,"standing":{"doing":"forged"}}]})";
  std::thread flood([&] {
    // Lines without end: none of them may be kept.
    for (const std::string& text : {table + "\n", std::string(1 << 20, '\n'), std::string(1 << 20, '{')}) {
      const int fd = connect_to_port();
      while (::send(fd, text.data(), text.size(), MSG_NOSIGNAL) > 0) {
      }
      ::close(fd);
    }
  });
  const ProgramResult result = first.wait();
  EXPECT_EQ(second.wait().exit_code, 6);
  flood.join();
  EXPECT_EQ(result.exit_code, 6);
  EXPECT_THAT(result.err,
              HasSubstr("rank 0 waits in all_gather of a, step 4, for rank 1, which is computing"));
  EXPECT_THAT(result.err, Not(HasSubstr("): forged"))) << "in the table; what strangers sent is quoted";
}

TEST_F(StoppedNodes, ASignalToOneLauncherEndsAllThatSaveWith75) {
  for (int told : {0, 1}) {
    for (bool elastic : {false, true}) {
      SCOPED_TRACE(concat("node ", told, elastic ? ", elastic" : ", static"));
      std::filesystem::remove(folder_.path() / "stop");
      RunningProgram* nodes[2];
      for (int node : {0, 1}) {
        nodes[node] =
            elastic ? &start_elastic("1:2", saving_worker()) : &start_static(node, 2, saving_worker());
      }
      ASSERT_TRUE(nodes[0]->wait_for("ready") && nodes[1]->wait_for("ready"));
      nodes[told]->send(SIGTERM);
      for (RunningProgram* node : nodes) {
        const ProgramResult result = node->wait();
        EXPECT_EQ(result.exit_code, 75) << result.err;
        EXPECT_THAT(result.err, Not(HasSubstr("error")));
      }
    }
  }
}

/// Ends when the peer is gone, as a rank whose collective fails does.
std::string peer_losing_worker(const std::string& file) {
  return concat("[ $RANK = 1 ] && { echo $$ > ", file, ".new; mv ", file, ".new ", file,
                "; echo ready; exec sleep 100; }; until [ -e ", file,
                " ]; do sleep 0.02; done; echo ready; while kill -0 $(cat ", file,
                ") 2>/dev/null; do sleep 0.02; done; exit 5");
}

TEST_F(StoppedNodes, TheSignalIsTheCauseWhenPeersOfTheStoppedWorkersFail) {
  const std::string script = peer_losing_worker(folder_.path() / "pid");
  RunningProgram& first = start_static(0, 2, script);
  RunningProgram& second = start_static(1, 2, script);
  ASSERT_TRUE(first.wait_for("ready") && second.wait_for("ready"));
  second.send(SIGHUP);
  for (RunningProgram* node : {&first, &second}) {
    const ProgramResult result = node->wait();
    EXPECT_EQ(result.exit_code, 128 + SIGHUP);
    EXPECT_THAT(result.err, HasSubstr("told to stop: rank 1 (pid "));
  }
}

}  // namespace
}  // namespace fsdp::launch
