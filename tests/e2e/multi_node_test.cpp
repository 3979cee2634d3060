// Training over hosts with addresses of their own, and through failures.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "e2e/programs.h"
#include "state/manifest/folders.h"
#include "support/free_port.h"
#include "support/network_hosts.h"

namespace fsdp::e2e {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::NetworkHosts;
using testing::ProgramResult;
using testing::RunningProgram;
using testing::RunOptions;

/// Step -> loss; the last one of a step that was trained twice.
std::map<int64_t, double> losses_in(const std::filesystem::path& run) {
  std::map<int64_t, double> losses;
  std::ifstream file(run / "metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    const auto entry = nlohmann::json::parse(line, nullptr, false);
    if (entry.is_object() && entry.contains("loss")) losses[entry.at("step")] = entry.at("loss");
  }
  return losses;
}

void expect_same(const std::map<int64_t, double>& found, const std::map<int64_t, double>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [step, loss] : expected) {
    ASSERT_TRUE(found.contains(step)) << "step " << step;
    EXPECT_NEAR(found.at(step), loss, 1e-5 * loss) << "step " << step;
  }
}

class MultiNodeTraining : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::write_token_file(folder_ / "train.bin", 60 * 12 * 16 + 1, 17);
    std::ofstream(folder_ / "config.toml") << kOddModel;
  }

  /// fsdp-train with twelve sequences a step, whatever the world.
  std::vector<std::string> training(const std::string& run, int world_size, int steps) const {
    return {program("fsdp-train"),
            (folder_ / "config.toml").string(),
            "run.output_dir=" + (folder_ / run).string(),
            "data.train=[\"" + (folder_ / "train.bin").string() + "\"]",
            "data.micro_batch_size=" + std::to_string(12 / world_size),
            "training.steps=" + std::to_string(steps)};
  }

  std::map<int64_t, double> losses_of_one_node(int steps) const {
    std::vector<std::string> command{program("fsdp-launch"), "--nproc-per-node", "2", "--"};
    for (const std::string& argument : training("single", 2, steps)) command.push_back(argument);
    const ProgramResult result = testing::run(command, kOptions);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return losses_in(folder_ / "single");
  }

  /// Two processes on each host, which find out by themselves that they are on several, or use gloo alone.
  std::map<int64_t, double> losses_of_hosts(NetworkHosts& hosts, int count,
                                            const std::string& backend = "auto") const {
    const std::string name = std::to_string(count) + "hosts-" + backend;
    std::vector<std::unique_ptr<RunningProgram>> nodes;
    for (int host = count - 1; host >= 0; --host) {
      std::vector<std::string> command{program("fsdp-launch"),   "--nnodes",  std::to_string(count),
                                       "--rdzv-backend",         "c10d",      "--rdzv-endpoint",
                                       NetworkHosts::address(0), "--rdzv-id", "run7",
                                       "--nproc-per-node",       "2",         "--"};
      for (const std::string& argument : training(name, 2 * count, 20)) command.push_back(argument);
      command.push_back("comm.backend=" + backend);
      nodes.push_back(std::make_unique<RunningProgram>(hosts.on(host, command), kOptions));
    }
    for (auto& node : nodes) {
      const ProgramResult result = node->wait();
      EXPECT_EQ(result.exit_code, 0) << result.err;
      if (node != nodes.back()) continue;
      EXPECT_THAT(result.out + result.err, HasSubstr(std::to_string(2 * count) + " over " +
                                                     (backend == "auto" ? "hierarchical" : backend)));
    }
    return losses_in(folder_ / name);
  }

  const RunOptions kOptions{.env = {{"OMP_NUM_THREADS", "1"}}, .timeout_seconds = 120};
  testing::TemporaryFolder folder_;
};

TEST_F(MultiNodeTraining, HasTheLossesOfASingleNode) {
  if (const std::string why = NetworkHosts::missing(); !why.empty()) GTEST_SKIP() << why;
  const auto expected = losses_of_one_node(20);
  ASSERT_EQ(expected.size(), 20u);
  for (int count : {2, 3}) {
    NetworkHosts hosts(count);
    expect_same(losses_of_hosts(hosts, count), expected);
    expect_same(losses_of_hosts(hosts, count, "gloo"), expected);
  }
}

TEST_F(MultiNodeTraining, HasThemOverASlowLinkToo) {
  if (const std::string why = NetworkHosts::missing(); !why.empty()) GTEST_SKIP() << why;
  NetworkHosts hosts(2);
  hosts.delay(std::chrono::milliseconds(2));
  expect_same(losses_of_hosts(hosts, 2), losses_of_one_node(20));
}

TEST_F(MultiNodeTraining, EndsOnAllHostsWhenARankIsKilled) {
  if (const std::string why = NetworkHosts::missing(); !why.empty()) GTEST_SKIP() << why;
  NetworkHosts hosts(2);
  RunOptions options = kOptions;
  options.env["FSDP_INJECT_FAULT"] = "rank=3,step=3,at=collective,do=kill";
  std::vector<std::unique_ptr<RunningProgram>> nodes;
  for (int host : {0, 1}) {
    // Without a launcher nobody but the processes themselves tells the others of the lost one.
    for (int rank : {2 * host, 2 * host + 1}) {
      std::vector<std::string> command{"env",
                                       "RANK=" + std::to_string(rank),
                                       "WORLD_SIZE=4",
                                       "LOCAL_RANK=" + std::to_string(rank % 2),
                                       "LOCAL_WORLD_SIZE=2",
                                       "MASTER_ADDR=" + NetworkHosts::address(0),
                                       "MASTER_PORT=29500"};
      for (const std::string& argument : training("killed", 4, 20)) command.push_back(argument);
      nodes.push_back(std::make_unique<RunningProgram>(hosts.on(host, command), options));
    }
  }
  for (auto& node : nodes) {
    const ProgramResult result = node->wait();
    EXPECT_LT(result.seconds, 40) << "less than comm.timeout_seconds";
    if (node == nodes.back()) {
      EXPECT_EQ(result.exit_code, 128 + SIGKILL);
    } else {
      EXPECT_EQ(result.exit_code, 5) << result.err;
      EXPECT_THAT(result.err, HasSubstr("no answer from rank 3"));
    }
  }
}

TEST_F(MultiNodeTraining, EndsWithTheLossesOfAnUndisturbedRunAfterCrashes) {
  const auto expected = losses_of_one_node(60);
  // Rank 1 is killed once step 10, and in the next round once step 30, has been logged.
  const std::string script =
      "\"$@\" & child=$!; [ $RANK = 1 ] && case $TORCHELASTIC_RESTART_COUNT in 0) step=10;; 1) step=30;; "
      "*) step=; esac; [ -n \"$step\" ] && { until grep -q \"\\\"step\\\": *$step[,}]\" \"$0\" "
      "2>/dev/null; do sleep 0.01; done; kill -9 $child; }; wait $child";
  std::vector<std::string> command{program("fsdp-launch"),
                                   "--nproc-per-node",
                                   "2",
                                   "--max-restarts",
                                   "2",
                                   "--",
                                   "/bin/sh",
                                   "-c",
                                   script,
                                   (folder_ / "crashed" / "metrics.jsonl").string()};
  for (const std::string& argument : training("crashed", 2, 60)) command.push_back(argument);
  command.push_back("checkpoint.interval_steps=5");
  const ProgramResult result = testing::run(command, kOptions);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("restart 2 of 2"), HasSubstr("resuming from")));
  expect_same(losses_in(folder_ / "crashed"), expected);
}

TEST_F(MultiNodeTraining, ASignalToOneLauncherSavesAndEndsAllWith75) {
  for (const bool elastic : {false, true}) {
    SCOPED_TRACE(elastic ? "elastic" : "static");
    const std::string run = elastic ? "elastic" : "static", port = std::to_string(testing::free_port());
    std::vector<std::unique_ptr<RunningProgram>> nodes;
    for (const char* node : {"0", "1"}) {
      std::vector<std::string> command{program("fsdp-launch"), "--nproc-per-node", "2"};
      const std::vector<std::string> place =
          elastic ? std::vector<std::string>{"--nnodes",        "1:2",
                                             "--rdzv-backend",  "c10d",
                                             "--rdzv-endpoint", "localhost:" + port,
                                             "--rdzv-id",       "run7"}
                  : std::vector<std::string>{"--nnodes", "2", "--node-rank", node, "--master-port", port};
      command.insert(command.end(), place.begin(), place.end());
      command.push_back("--");
      for (const std::string& argument : training(run, 4, 1'000'000)) command.push_back(argument);
      nodes.push_back(std::make_unique<RunningProgram>(command, kOptions));
    }
    ASSERT_TRUE(testing::eventually([&] { return losses_in(folder_ / run).size() > 2; }, 60));
    nodes[0]->send(SIGTERM);
    for (auto& node : nodes) EXPECT_EQ(node->wait().exit_code, 75) << node->err();
    const auto saved = checkpoint::find_checkpoints(folder_ / run).complete;
    ASSERT_FALSE(saved.empty());
    EXPECT_EQ(saved.back().step, losses_in(folder_ / run).rbegin()->first);
  }
}

TEST_F(MultiNodeTraining, AllNodesShowWhoWaitsForARankThatSleeps) {
  const std::string port = std::to_string(testing::free_port());
  RunOptions options = kOptions;
  options.env["FSDP_INJECT_FAULT"] = "rank=2,step=3,at=forward,do=sleep:60";
  std::vector<std::unique_ptr<RunningProgram>> nodes;
  for (const char* node : {"0", "1"}) {
    std::vector<std::string> command{program("fsdp-launch"),
                                     "--nproc-per-node",
                                     "2",
                                     "--nnodes",
                                     "2",
                                     "--node-rank",
                                     node,
                                     "--master-port",
                                     port,
                                     "--shutdown-timeout",
                                     "2",
                                     "--"};
    for (const std::string& argument : training("sleeps", 4, 20)) command.push_back(argument);
    command.push_back("comm.timeout_seconds=3");
    nodes.push_back(std::make_unique<RunningProgram>(command, options));
  }
  for (auto& node : nodes) {
    const ProgramResult result = node->wait();
    EXPECT_THAT(result.exit_code, ::testing::AnyOf(5, 6)) << result.err;
    EXPECT_THAT(result.err, AllOf(HasSubstr("state of the workers on all nodes:\n    rank 0 (pid "),
                                  HasSubstr("ranks 0, 1 and 3 wait in "),
                                  HasSubstr("for rank 2, which is computing, step 3, ")));
  }
}

}  // namespace
}  // namespace fsdp::e2e
