// Hybrid sharding, the layout per_parameter, cut sequences and float16 as runs of the real programs: the
// losses of one process.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "e2e/programs.h"
#include "support/tiny_config.h"

namespace fsdp::e2e {
namespace {

class Strategies : public ::testing::Test {
 protected:
  Strategies() {
    testing::write_token_file(folder_ / "train.bin", 20 * 24 * 16 + 1, 17);
    std::ofstream(folder_ / "config.toml") << kOddModel;
  }

  struct Curves {
    std::vector<double> losses, grad_norms;
  };

  /// Of 20 steps of 24 sequences, each of which is on `together` processes.
  Curves train(const std::string& run, int world_size, std::vector<std::string> overrides, int together = 1) {
    overrides.push_back("run.output_dir=" + (folder_ / run).string());
    overrides.push_back("data.train=[\"" + (folder_ / "train.bin").string() + "\"]");
    overrides.push_back("data.micro_batch_size=" + std::to_string(24 * together / world_size));
    const auto result = launch_training(world_size, folder_ / "config.toml", overrides);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    said_ = result.err;
    const auto metrics = folder_ / run / "metrics.jsonl";
    return {testing::values_of(metrics, "loss"), testing::values_of(metrics, "grad_norm")};
  }

  static void expect_near(const Curves& found, const Curves& expected, double relative) {
    ASSERT_EQ(expected.losses.size(), 20u);
    ASSERT_EQ(found.losses.size(), 20u);
    EXPECT_LT(expected.losses.back(), expected.losses.front());
    for (size_t i = 0; i < 20; ++i) {
      const double norm = expected.grad_norms.at(i);
      EXPECT_NEAR(found.losses[i], expected.losses[i], relative * expected.losses[i]) << i;
      EXPECT_NEAR(found.grad_norms.at(i), norm, 10 * relative * norm) << i;
    }
  }

  testing::TemporaryFolder folder_;
  std::string said_;  ///< by the last run, on stderr
};

TEST_F(Strategies, FourProcessesAsTwoReplicasOfTwoTrainAsOneProcess) {
  const auto hybrid = train("hybrid", 4, {"fsdp.strategy=hybrid_shard", "mesh.dcn=2"});
  EXPECT_NE(said_.find("units sharded over data (2), replicated over dcn (2)"), std::string::npos) << said_;
  expect_near(hybrid, train("one", 1, {}), 1e-5);
}

TEST_F(Strategies, FourProcessesThatShareSequencesInTwosTrainAsOneProcess) {
  const auto one = train("one", 1, {});
  for (const char* attention : {"ring", "gather"}) {
    const auto cut = train(attention, 4, {"mesh.context=2", concat("mesh.context_attention=", attention)},
                           /*together=*/2);
    EXPECT_NE(said_.find("units sharded over data x context (4)"), std::string::npos) << said_;
    expect_near(cut, one, 1e-5);
  }
}

TEST_F(Strategies, ProcessesThatShareLayersTrainAsOneProcess) {
  const auto one = train("one", 1, {});
  expect_near(train("model", 2, {"mesh.model=2"}, /*together=*/2), one, 1e-5);
  expect_near(train("data", 4, {"mesh.model=2"}, /*together=*/2), one, 1e-5);
  EXPECT_NE(said_.find("each layer over 2 ranks"), std::string::npos) << said_;
  expect_near(train("context", 4, {"mesh.model=2", "mesh.context=2"}, /*together=*/4), one, 1e-5);
  expect_near(
      train("replicas", 4, {"mesh.model=2", "mesh.dcn=2", "fsdp.strategy=hybrid_shard"}, /*together=*/2), one,
      1e-5);
}

TEST_F(Strategies, FourProcessesWithAGlobalOptimizerTrainAsTwoReplicasDo) {
  const std::vector<std::string> hybrid = {"fsdp.strategy=hybrid_shard", "mesh.dcn=2"};
  std::vector<std::string> global = hybrid;
  global.push_back("fsdp.hybrid_optimizer=global");
  const auto found = train("global", 4, global);
  EXPECT_NE(said_.find("optimizer state sharded over dcn x data (4)"), std::string::npos) << said_;
  expect_near(found, train("replicated", 4, hybrid), 1e-6);
}

TEST_F(Strategies, ParametersCutEachOnItsOwnTrainAsOneProcess) {
  const auto cut = train("cut", 2, {"fsdp.layout=per_parameter"});
  expect_near(cut, train("one", 1, {}), 1e-5);
  const auto manifest = util::read_file(folder_ / "cut/step-00000020/manifest.json");
  EXPECT_EQ(nlohmann::json::parse(manifest).at("layout"), "per_parameter");
}

TEST_F(Strategies, TwoProcessesTrainInFloat16AsOneDoes) {
  const std::vector<std::string> float16 = {"mixed_precision.param_dtype=float16",
                                            "mixed_precision.reduce_dtype=float16"};
  const auto two = train("two", 2, float16), one = train("one", 1, float16);
  expect_near(two, one, 1e-3);
  const auto exact = train("float32", 1, {});
  expect_near(two, exact, 1e-2);
  EXPECT_NE(two.losses, exact.losses) << "computed in float32";
  EXPECT_EQ(testing::values_of(folder_ / "two/metrics.jsonl", "loss_scale").size(), 20u);
}

}  // namespace
}  // namespace fsdp::e2e
