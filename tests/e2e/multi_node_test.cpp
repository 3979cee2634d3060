// Training over hosts with addresses of their own, and through failures.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "e2e/programs.h"
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

  std::map<int64_t, double> losses_of_hosts(NetworkHosts& hosts, int count) const {
    const std::string name = std::to_string(count) + "hosts";
    std::vector<std::unique_ptr<RunningProgram>> nodes;
    for (int host = count - 1; host >= 0; --host) {
      std::vector<std::string> command{program("fsdp-launch"),   "--nnodes",  std::to_string(count),
                                       "--rdzv-backend",         "c10d",      "--rdzv-endpoint",
                                       NetworkHosts::address(0), "--rdzv-id", "run7",
                                       "--nproc-per-node",       "2",         "--"};
      for (const std::string& argument : training(name, 2 * count, 20)) command.push_back(argument);
      nodes.push_back(std::make_unique<RunningProgram>(hosts.on(host, command), kOptions));
    }
    for (auto& node : nodes) {
      const ProgramResult result = node->wait();
      EXPECT_EQ(result.exit_code, 0) << result.err;
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
  }
}

TEST_F(MultiNodeTraining, HasThemOverASlowLinkToo) {
  if (const std::string why = NetworkHosts::missing(); !why.empty()) GTEST_SKIP() << why;
  NetworkHosts hosts(2);
  hosts.delay(std::chrono::milliseconds(2));
  expect_same(losses_of_hosts(hosts, 2), losses_of_one_node(20));
}

TEST_F(MultiNodeTraining, EndsWithTheLossesOfAnUndisturbedRunAfterCrashes) {
  const auto expected = losses_of_one_node(60);
  // Rank 1 is killed once step 10, and in the next round once step 30, has been logged.
  const std::string script =
      "\"$@\" & child=$!; [ $RANK = 1 ] && case $TORCHELASTIC_RESTART_COUNT in 0) step=10;; 1) step=30;; *) "
      "step=; esac; "
      "[ -n \"$step\" ] && { until grep -q \"\\\"step\\\": *$step[,}]\" \"$0\" 2>/dev/null; do sleep 0.01; "
      "done; "
      "kill -9 $child; }; wait $child";
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

}  // namespace
}  // namespace fsdp::e2e
