// fsdp-launch --replica-size with processes: replicas are lost, replaced and take part again, while those of
// the others go on. tests/tools/launch/membership_simulation_test.cpp has the decisions.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/util/error.h"
#include "support/launched_nodes.h"
#include "support/program_path.h"
#include "support/run_program.h"
#include "support/temporary_folder.h"
#include "tools/launch/replica_steps.h"

namespace fsdp::launch {
namespace {

using ::testing::AllOf;
using testing::eventually;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::process_runs;
using testing::ProgramResult;
using testing::RunningProgram;

class Replicas : public testing::LaunchedNodes {
 protected:
  /// The stand-in for a trainer (replica_worker.cpp).
  std::string worker(int64_t steps, int milliseconds = 10) const {
    return concat("exec ", testing::program_path("replica_worker"), " ", folder_.path().string(), " ", steps,
                  " ", milliseconds);
  }
  RunningProgram& launch_locally(const Options& options, const std::string& script) {
    Options all{"--replica-size", "2", "--stop-timeout", "0.5"};
    all.insert(all.end(), options.begin(), options.end());
    return start(all, script);
  }
  std::vector<pid_t> pids(int rank) const {
    std::ifstream file(folder_.path() / concat("pid.", rank));
    std::vector<pid_t> pids;
    for (pid_t pid = 0; file >> pid;) pids.push_back(pid);
    return pids;
  }
  int64_t steps_of(int rank) const {
    std::ifstream file(folder_.path() / concat("steps.", rank));
    int64_t step = 0;
    for (int epoch = 0; file >> epoch >> step;) {
    }
    return step;
  }
  bool reaches(int rank, int64_t step) {
    return eventually([&] { return steps_of(rank) >= step; }, 30);
  }
  void kill_newest(int rank, int signal) const { ::kill(pids(rank).back(), signal); }

  /// Every rank finished with the state of a run without faults, and did each of the last steps once.
  void expect_undisturbed_result(int64_t steps, const std::vector<int>& ranks) {
    for (int rank : ranks) {
      std::ifstream file(folder_.path() / concat("final.", rank));
      uint64_t state = 0;
      file >> state;
      EXPECT_EQ(state, testing::state_after(steps)) << "rank " << rank;
    }
  }
  /// Without a fall back to a checkpoint, a rank whose process lives does each step exactly once.
  void expect_each_step_once(int64_t steps, int rank) {
    std::ifstream file(folder_.path() / concat("steps.", rank));
    int64_t expected = 0, step = 0;
    for (int epoch = 0; file >> epoch >> step;) EXPECT_EQ(step, ++expected) << "rank " << rank;
    EXPECT_EQ(expected, steps) << "rank " << rank;
  }

  testing::TemporaryFolder folder_;
};

TEST_F(Replicas, WithoutFaultsTheRunIsOneEpoch) {
  const ProgramResult result = launch_locally({"--nproc-per-node", "4"}, worker(20)).wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  expect_undisturbed_result(20, {0, 1, 2, 3});
  for (int rank = 0; rank < 4; ++rank) expect_each_step_once(20, rank);
}

TEST_F(Replicas, SurvivorsGoOnAndTheLostReplicaComesBack) {
  RunningProgram& run = launch_locally({"--nproc-per-node", "6", "--max-restarts", "2"}, worker(150));
  ASSERT_TRUE(reaches(3, 20)) << run.err();
  folder_.write("delay.3", "500");  // long enough for the others to go on first
  kill_newest(3, SIGKILL);
  const ProgramResult result = run.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  expect_undisturbed_result(150, {0, 1, 2, 3, 4, 5});
  for (int rank : {0, 1, 4, 5}) {
    EXPECT_EQ(pids(rank).size(), 1u) << "rank " << rank;
    expect_each_step_once(150, rank);
  }
  for (int rank : {2, 3}) EXPECT_EQ(pids(rank).size(), 2u) << "rank " << rank;
  EXPECT_THAT(result.err, AllOf(HasSubstr("replica 1 (ranks 2 to 3) is lost: rank 3 (pid "),
                                HasSubstr("was ended by SIGKILL; starting it again, restart 1 of 2"),
                                HasSubstr("replicas 0, 2 of 3 continue after step "),
                                HasSubstr("replicas 0, 1, 2 of 3 continue after step ")));
}

TEST_F(Replicas, AStoppedRankIsFencedWhenItDoesNotAnswer) {
  RunningProgram& run = launch_locally({"--nproc-per-node", "4", "--max-restarts", "1"}, worker(150));
  ASSERT_TRUE(reaches(0, 20)) << run.err();
  const pid_t stopped = pids(0).back();
  ::kill(stopped, SIGSTOP);
  ASSERT_TRUE(run.wait_for("no report within 0.5 seconds (--stop-timeout) from rank 0")) << run.err();
  EXPECT_TRUE(eventually([&] { return !process_runs(stopped); }));
  const ProgramResult result = run.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  expect_undisturbed_result(150, {0, 1, 2, 3});
  for (int rank : {2, 3}) EXPECT_EQ(pids(rank).size(), 1u) << "rank " << rank;
}

TEST_F(Replicas, AReplicaMayBeLostAgainWhileItComesBack) {
  RunningProgram& run = launch_locally({"--nproc-per-node", "4", "--max-restarts", "2"}, worker(200));
  folder_.write("delay.3", "300");
  ASSERT_TRUE(reaches(3, 20)) << run.err();
  kill_newest(3, SIGKILL);
  ASSERT_TRUE(eventually([&] { return pids(3).size() == 2; }));
  kill_newest(3, SIGKILL);
  const ProgramResult result = run.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  expect_undisturbed_result(200, {0, 1, 2, 3});
  EXPECT_EQ(pids(0).size(), 1u);
  EXPECT_EQ(pids(3).size(), 3u);
}

TEST_F(Replicas, GoesOnWithoutAReplicaThatHasUsedItsRestarts) {
  RunningProgram& run = launch_locally({"--nproc-per-node", "4"}, worker(100));
  ASSERT_TRUE(reaches(1, 10)) << run.err();
  kill_newest(1, SIGKILL);
  const ProgramResult result = run.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("it is not started again (--max-restarts 0)"),
                                HasSubstr("replica 1 of 2 continue ")));
  expect_undisturbed_result(100, {2, 3});
  for (int rank : {2, 3}) expect_each_step_once(100, rank);
}

TEST_F(Replicas, EndsBelowTheMinimumAndSaysWhy) {
  RunningProgram& run = launch_locally({"--nproc-per-node", "4", "--min-replicas", "2"}, worker(100000));
  ASSERT_TRUE(reaches(1, 10)) << run.err();
  kill_newest(1, SIGKILL);
  const ProgramResult result = run.wait();
  EXPECT_EQ(result.exit_code, 128 + SIGKILL);
  EXPECT_THAT(result.err,
              HasSubstr("only 1 of 2 replicas can continue, but at least 2 must (--min-replicas); rank 1"));
  for (int rank = 0; rank < 4; ++rank) EXPECT_FALSE(process_runs(pids(rank).back()));
}

TEST_F(Replicas, StartsAgainFromTheCheckpointWhenAllAreLost) {
  RunningProgram& run = launch_locally({"--nproc-per-node", "4", "--max-restarts", "1"}, worker(150));
  ASSERT_TRUE(reaches(0, 20)) << run.err();
  for (int rank : {0, 3}) kill_newest(rank, SIGKILL);
  const ProgramResult result = run.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("replicas 0, 1 of 2 continue from the newest checkpoint"));
  expect_undisturbed_result(150, {0, 1, 2, 3});
}

TEST_F(Replicas, NamesTheFailureWhenNoneIsLeft) {
  const ProgramResult result =
      launch_locally({"--nproc-per-node", "4", "--max-restarts", "1"}, "echo 'no such data' >&2; exit 3")
          .wait();
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("no such data"), HasSubstr("failed first: it ended with exit code 3")));
}

TEST_F(Replicas, TellsOfAProgramThatDoesNotKnowReplicas) {
  const ProgramResult ended = launch_locally({"--nproc-per-node", "4"}, "true").wait();
  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_THAT(ended.err, HasSubstr("ended before it reported that it is ready"));
  const ProgramResult silent =
      launch_locally({"--nproc-per-node", "4", "--rdzv-conf", "join_timeout=0.5"}, "exec sleep 100").wait();
  EXPECT_NE(silent.exit_code, 0);
  EXPECT_THAT(silent.err, HasSubstr("ranks 0, 1 to report that it is ready"));
}

TEST_F(Replicas, AllEndWhenTheLauncherIsToldToStop) {
  RunningProgram& run = launch_locally({"--nproc-per-node", "4", "--max-restarts", "3"}, worker(100000));
  ASSERT_TRUE(reaches(1, 5)) << run.err();
  run.send(SIGTERM);
  EXPECT_EQ(run.wait().exit_code, 128 + SIGTERM);
  EXPECT_THAT(run.err(), Not(HasSubstr("is lost")));
  EXPECT_EQ(pids(0).size(), 1u);
}

TEST_F(Replicas, ManyFaultsLeaveTheResultAsItIs) {
  constexpr int64_t kSteps = 400;
  RunningProgram& run = launch_locally({"--nproc-per-node", "8", "--max-restarts", "100"}, worker(kSteps, 4));
  ASSERT_TRUE(reaches(0, 5)) << run.err();
  std::mt19937 random(7);
  int faults = 0;
  while (steps_of(0) < kSteps - 60 && faults < 40) {
    // Of replica 0 nobody is hit, so that the state is never lost.
    const int rank = 2 + static_cast<int>(random() % 6);
    kill_newest(rank, random() % 4 ? SIGKILL : SIGSTOP);
    ++faults;
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 200));
  }
  const ProgramResult result = run.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_GT(faults, 5);
  expect_undisturbed_result(kSteps, {0, 1});
  for (int rank : {0, 1}) {
    EXPECT_EQ(pids(rank).size(), 1u);
    expect_each_step_once(kSteps, rank);
  }
}

// Two launchers on this machine, each a node with one replica.

TEST_F(Replicas, ANodesReplicaComesBackWithANewNode) {
  const Options replicas{"--nproc-per-node", "2", "--replica-size", "2", "--max-restarts", "2"};
  RunningProgram& first = start_static(0, 2, worker(300), replicas);
  RunningProgram& second = start_static(1, 2, worker(300), replicas);
  ASSERT_TRUE(reaches(2, 20)) << first.err();
  second.send(SIGKILL);
  ASSERT_TRUE(first.wait_for("replica 0 of 2 continue after step")) << first.err();
  RunningProgram& replacement = start_static(1, 2, worker(300), replicas);
  const ProgramResult result = first.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(replacement.wait().exit_code, 0);
  EXPECT_THAT(result.err, AllOf(HasSubstr("takes the place of a lost node, ranks 2 to 3"),
                                HasSubstr("replicas 0, 1 of 2 continue after step")));
  expect_undisturbed_result(300, {0, 1, 2, 3});
  for (int rank : {0, 1}) {
    EXPECT_EQ(pids(rank).size(), 1u);
    expect_each_step_once(300, rank);
  }
}

TEST_F(Replicas, TheHostsWorkersMayBeLostWhileTheOtherNodeGoesOn) {
  const Options replicas{"--nproc-per-node", "2", "--replica-size", "2", "--max-restarts", "1"};
  RunningProgram& first = start_static(0, 2, worker(200), replicas);
  RunningProgram& second = start_static(1, 2, worker(200), replicas);
  ASSERT_TRUE(reaches(2, 20)) << first.err();
  kill_newest(0, SIGKILL);
  EXPECT_EQ(first.wait().exit_code, 0) << first.err();
  EXPECT_EQ(second.wait().exit_code, 0) << second.err();
  expect_undisturbed_result(200, {0, 1, 2, 3});
  for (int rank : {2, 3}) EXPECT_EQ(pids(rank).size(), 1u);
}

TEST_F(Replicas, NodesWithoutTheHostEndTheirWorkers) {
  const Options replicas{"--nproc-per-node", "2", "--replica-size",     "2",
                         "--max-restarts",   "2", "--shutdown-timeout", "1"};
  RunningProgram& first = start_static(0, 2, worker(100000), replicas);
  RunningProgram& second = start_static(1, 2, worker(100000), replicas);
  ASSERT_TRUE(reaches(2, 10)) << first.err();
  first.send(SIGKILL);
  const ProgramResult result = second.wait();
  EXPECT_EQ(result.exit_code, static_cast<int>(ErrorKind::kPeerLost));
  EXPECT_THAT(result.err, HasSubstr("lost the node where all meet"));
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_TRUE(eventually([&] { return !process_runs(pids(rank).back()); })) << "rank " << rank;
  }
}

}  // namespace
}  // namespace fsdp::launch
