// The same global batch on 1, 2, 3 and 4 processes trains the same model: whole runs of the real programs.

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <cmath>

#include "e2e/programs.h"
#include "state/weights/weights.h"
#include "support/tiny_config.h"

namespace fsdp::e2e {
namespace {

struct Outcome {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> weights;
};

struct Setting {
  std::string name;
  std::vector<std::string> overrides;
};

Outcome train_and_consolidate(const testing::TemporaryFolder& folder, int world_size,
                              const Setting& setting) {
  // 24 sequences a step whatever the world and the accumulation.
  std::filesystem::path out = folder / ("out" + std::to_string(world_size));
  int64_t accumulation = setting.name.find("accumulation") != std::string::npos ? 2 : 1;
  std::vector<std::string> overrides = {
      "run.output_dir=" + out.string(), "data.train=[\"" + (folder / "train.bin").string() + "\"]",
      "data.micro_batch_size=" + std::to_string(24 / accumulation / world_size),
      "training.gradient_accumulation_steps=" + std::to_string(accumulation)};
  overrides.insert(overrides.end(), setting.overrides.begin(), setting.overrides.end());
  auto result = launch_training(world_size, folder / "config.toml", overrides);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  Outcome outcome;
  if (result.exit_code != 0) return outcome;
  outcome.losses = testing::values_of(out / "metrics.jsonl", "loss");

  auto consolidated =
      testing::run({program("fsdp-ckpt"), "consolidate", out.string(), (out / "w.safetensors").string()});
  EXPECT_EQ(consolidated.exit_code, 0) << consolidated.err;
  auto weights = checkpoint::open_weights(out / "w.safetensors");
  for (const std::string& name : weights.names()) {
    outcome.weights[name] = at::empty(weights.shape(name));
    weights.read_into(name, outcome.weights[name]);
  }
  return outcome;
}

class WorldSize : public ::testing::TestWithParam<Setting> {};

TEST_P(WorldSize, ChangesNeitherLossesNorWeights) {
  const Setting& setting = GetParam();
  testing::TemporaryFolder folder;
  testing::write_token_file(folder / "train.bin", 20 * 24 * 16 + 1, 17);
  std::ofstream(folder / "config.toml") << kOddModel;

  Outcome one = train_and_consolidate(folder, 1, setting);
  ASSERT_EQ(one.losses.size(), 20u);
  EXPECT_LT(one.losses.back(), one.losses.front());
  for (int world : {2, 3, 4}) {
    Outcome many = train_and_consolidate(folder, world, setting);
    ASSERT_EQ(many.losses.size(), 20u);
    for (size_t i = 0; i < 20; ++i)
      EXPECT_NEAR(many.losses[i], one.losses[i], 1e-5 * one.losses[i]) << world << " " << i;
    ASSERT_EQ(many.weights.size(), one.weights.size());
    double squared_difference = 0, squared_norm = 0;
    for (const auto& [name, weight] : one.weights) {
      at::Tensor difference = (many.weights.at(name) - weight).to(at::kDouble);
      if (setting.name.rfind("sgd", 0) == 0) {
        EXPECT_LE(difference.abs().max().item<double>(), 1e-5) << world << " " << name;
      }
      squared_difference += difference.square().sum().item<double>();
      squared_norm += weight.to(at::kDouble).square().sum().item<double>();
    }
    // AdamW amplifies gradients that are zero but for rounding, such as those of GPT-2's key biases, so its
    // weights are compared as one vector.
    EXPECT_LE(std::sqrt(squared_difference), 1e-4 * std::sqrt(squared_norm)) << world;
  }
}

const std::string kSgd = "optimizer.name=sgd", kTied = "model.tie_word_embeddings=true";

INSTANTIATE_TEST_SUITE_P(
    All, WorldSize,
    ::testing::Values(Setting{"sgd", {kSgd, "optimizer.lr=0.3"}}, Setting{"adamw", {}},
                      Setting{"sgd_tied_accumulation", {kSgd, "optimizer.lr=0.3", kTied}},
                      Setting{"adamw_tied_accumulation", {kTied}},
                      Setting{"adamw_gpt2", {"model.architecture=gpt2", "model.num_key_value_heads=4"}}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace fsdp::e2e
