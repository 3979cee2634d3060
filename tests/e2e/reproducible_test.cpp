// training.reproducible = "world_size" as runs of the real programs: the bits of one process.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/util/file.h"
#include "e2e/programs.h"
#include "support/network_hosts.h"
#include "support/tiny_config.h"

namespace fsdp::e2e {
namespace {

using testing::NetworkHosts;
using testing::ProgramResult;
using testing::RunningProgram;
using testing::RunOptions;

class Reproducible : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::write_token_file(folder_ / "train.bin", 3 * 24 * 16 + 1, 17);
    std::ofstream(folder_ / "config.toml") << kOddModel;
  }

  std::vector<std::string> training(const std::string& run, const std::vector<std::string>& overrides) const {
    std::vector<std::string> command{program("fsdp-train"),
                                     (folder_ / "config.toml").string(),
                                     "run.output_dir=" + (folder_ / run).string(),
                                     "data.train=[\"" + (folder_ / "train.bin").string() + "\"]",
                                     "training.reproducible=world_size",
                                     "training.global_batch_size=24",
                                     "training.steps=3",
                                     "checkpoint.save_at_end=true"};
    command.insert(command.end(), overrides.begin(), overrides.end());
    return command;
  }

  struct Results {
    std::string weights;
    std::vector<double> losses, grad_norms;
  };

  Results results_of(const std::string& run) const {
    const auto weights = folder_ / (run + ".safetensors"), checkpoint = folder_ / run / "step-00000003";
    const ProgramResult done =
        testing::run({program("fsdp-ckpt"), "consolidate", checkpoint.string(), weights.string()}, kOptions);
    EXPECT_EQ(done.exit_code, 0) << done.err;
    const auto metrics = folder_ / run / "metrics.jsonl";
    return {util::read_file(weights), testing::values_of(metrics, "loss"),
            testing::values_of(metrics, "grad_norm")};
  }

  Results on(int processes, const std::string& run, const std::vector<std::string>& overrides) const {
    std::vector<std::string> command{program("fsdp-launch"), "--nproc-per-node", std::to_string(processes),
                                     "--"};
    for (const std::string& argument : training(run, overrides)) command.push_back(argument);
    const ProgramResult done = testing::run(command, kOptions);
    EXPECT_EQ(done.exit_code, 0) << done.err;
    return results_of(run);
  }

  Results on_hosts(int count, int processes, const std::string& run,
                   const std::vector<std::string>& overrides) const {
    NetworkHosts hosts(count);
    std::vector<std::unique_ptr<RunningProgram>> nodes;
    for (int host = count - 1; host >= 0; --host) {
      std::vector<std::string> command{program("fsdp-launch"),
                                       "--nnodes",
                                       std::to_string(count),
                                       "--rdzv-backend",
                                       "c10d",
                                       "--rdzv-endpoint",
                                       NetworkHosts::address(0),
                                       "--rdzv-id",
                                       "run7",
                                       "--nproc-per-node",
                                       std::to_string(processes),
                                       "--"};
      for (const std::string& argument : training(run, overrides)) command.push_back(argument);
      nodes.push_back(std::make_unique<RunningProgram>(hosts.on(host, command), kOptions));
    }
    for (auto& node : nodes) {
      const ProgramResult done = node->wait();
      EXPECT_EQ(done.exit_code, 0) << done.err;
    }
    return results_of(run);
  }

  void expect_same(const Results& found, const Results& expected) const {
    EXPECT_TRUE(found.weights == expected.weights) << "other weights";
    EXPECT_EQ(expected.losses.size(), 3u);
    EXPECT_EQ(found.losses, expected.losses);
    EXPECT_EQ(found.grad_norms, expected.grad_norms);
  }

  const RunOptions kOptions{.env = {{"OMP_NUM_THREADS", "1"}}, .timeout_seconds = 120};
  testing::TemporaryFolder folder_;
};

TEST_F(Reproducible, ProcessesHaveTheBitsOfOneOverEachBackendOfAHost) {
  const Results one = on(1, "one", {"data.micro_batch_size=4"});
  for (const std::string backend : {"shm", "gloo"}) {
    SCOPED_TRACE(backend);
    expect_same(on(3, backend, {"comm.backend=" + backend, "data.micro_batch_size=2"}), one);
  }
  const Results other = on(3, "default", {"training.reproducible=run", "data.micro_batch_size=2"});
  EXPECT_FALSE(other.weights == one.weights) << "the default has the same bits, so nothing was tested";
}

TEST_F(Reproducible, ProcessesOnHostsHaveTheBitsOfOne) {
  if (const std::string why = NetworkHosts::missing(); !why.empty()) GTEST_SKIP() << why;
  const Results one = on(1, "one", {"data.micro_batch_size=8"});
  const std::string hierarchical = "comm.backend=hierarchical";
  expect_same(on_hosts(2, 2, "two by two", {hierarchical, "data.micro_batch_size=2"}), one);
  // Sums of three are no nodes of the tree.
  expect_same(on_hosts(2, 3, "two by three", {hierarchical, "data.micro_batch_size=1"}), one);
  expect_same(on_hosts(3, 2, "three by two", {"comm.backend=gloo", "data.micro_batch_size=1"}), one);
}

}  // namespace
}  // namespace fsdp::e2e
