#include "run/train/layer_modes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "base/util/error.h"
#include "comm/api/communicator.h"
#include "shard/engine/fully_shard.h"
#include "support/tiny_models.h"
#include "support/trainer_fixture.h"

namespace fsdp::train {
namespace {

using ::testing::HasSubstr;

class NoPool final : public util::DeviceGraphPool {
 public:
  std::unique_ptr<util::DeviceGraph> record(const std::function<void()>&) override { return nullptr; }
};

std::string refusal(const std::function<void()>& action) {
  try {
    action();
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.what();
  }
  return "none";
}

TEST(BlockGraphs, AreOfAGpu) {
  config::Config config;
  prepare_graphs(config, at::kCPU);
  config.training.cuda_graphs = true;
  EXPECT_EQ(refusal([&] { prepare_graphs(config, at::kCPU); }),
            "training.cuda_graphs requires a GPU, but training is on cpu; leave it out");
}

TEST(BlockGraphs, TakeUnitsThatAreOrHoldBlocksAndRefuseThoseInside) {
  const auto graphs_with = [](const std::vector<std::string>& wrap_stages) {
    auto model = testing::make_initialized(testing::tiny_options());
    shard::ShardOptions options;
    options.wrap_stages = wrap_stages;
    auto engine = shard::fully_shard(*model, options, std::make_shared<comm::SingleCommunicator>());
    graph_blocks(*model, *engine, [] { return std::make_shared<NoPool>(); });
  };
  EXPECT_EQ(refusal([&] { graphs_with({"block"}); }), "none");
  EXPECT_EQ(refusal([&] { graphs_with({"embedding"}); }), "none");
  EXPECT_THAT(refusal([&] {
                graphs_with({"block", "feed_forward"});
              }),
              ::testing::HasSubstr("but unit model.layers.0.mlp is inside block model.layers.0 and"));
}

TEST(BlockGraphs, AreCountedInALine) {
  EXPECT_EQ(describe({.recorded = 72, .launched = 4776, .plain = 2}),
            "CUDA graphs: 72 recorded, 4,776 launched, 2 passes through blocks kernel by kernel");
}

class Float8Training : public TrainerTest {
 protected:
  Float8Training() {
    config_.model.hidden_size = 32;
    config_.model.intermediate_size = 48;
    config_.model.num_key_value_heads = 2;
    config_.model.initializer_range = 0.1;
    config_.mixed_precision.param_dtype = "bfloat16";
    config_.training.float8 = "tensorwise";
    config_.data.validation.clear();
  }

  std::vector<double> losses(int world_size) {
    config_.run.output_dir = folder_ / config_.training.float8.name() / std::to_string(world_size);
    train(world_size, config_);
    return testing::values_of(std::filesystem::path(config_.run.output_dir) / "metrics.jsonl", "loss");
  }

  std::string refusal() {
    auto model = nn::make_decoder(config_.model, at::kMeta);
    try {
      apply_float8(config_, *model, c10::kCPU);
    } catch (const util::Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      return error.what();
    }
    return "";
  }
};

TEST_F(Float8Training, ConvergesBesideBfloat16) {
  config_.training.steps = 40;
  std::map<std::string, std::vector<double>> found;
  for (const char* recipe : {"none", "tensorwise", "rowwise"}) {
    config_.training.float8 = recipe;
    found[recipe] = losses(2);
  }
  const std::vector<double>& in_bfloat16 = found["none"];
  auto last = [](const std::vector<double>& of) {
    return std::accumulate(of.end() - 10, of.end(), 0.0) / 10;
  };
  EXPECT_LT(last(in_bfloat16), 0.8 * in_bfloat16.front());
  EXPECT_NE(found["tensorwise"], found["rowwise"]);
  for (const char* recipe : {"tensorwise", "rowwise"}) {
    const std::vector<double>& in_float8 = found[recipe];
    ASSERT_EQ(in_float8.size(), in_bfloat16.size());
    EXPECT_NE(in_float8, in_bfloat16);
    EXPECT_NEAR(last(in_float8), last(in_bfloat16), 0.08 * last(in_bfloat16)) << recipe;
    // Later, single steps of so small a model differ by chance.
    for (size_t i = 0; i < in_float8.size() / 2; ++i) EXPECT_NEAR(in_float8[i], in_bfloat16[i], 0.2) << i;
  }
}

TEST_F(Float8Training, TrainsAlikeWithRecomputationAndAccumulation) {
  config_.training.gradient_accumulation_steps = 2;
  const std::vector<double> expected = losses(1);
  config_.activation_checkpointing.mode = "full";
  EXPECT_EQ(losses(1), expected);
  config_.training.no_sync = true;
  const std::vector<double> reduced_once = losses(1);
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(reduced_once[i], expected[i], 1e-2) << i;
}

TEST_F(Float8Training, SaysWhichLayersItIsFor) {
  config_.model.intermediate_size = 40;
  config_.training.float8_exclude = {"model.layers.0.*"};
  auto model = nn::make_decoder(config_.model, at::kMeta);
  EXPECT_EQ(
      describe(apply_float8(config_, *model, c10::kCPU), c10::kCPU),
      "training.float8: 8 linear layers multiply in 8 bits, embedding and output head do not; 6 stay in "
      "bfloat16, because their sizes are not multiples of 16: model.layers.1.mlp.gate_proj, "
      "model.layers.1.mlp.up_proj, model.layers.1.mlp.down_proj, model.layers.2.mlp.gate_proj, "
      "model.layers.2.mlp.up_proj, model.layers.2.mlp.down_proj; 7 are excluded; on a CPU this is for "
      "tests, and slower than bfloat16");
}

TEST_F(Float8Training, IsForLayersWhosePartsFit) {
  config_.model.hidden_size = 64;
  config_.model.num_hidden_layers = 1;
  config_.model.intermediate_size = 96;
  config_.model.num_attention_heads = 8;
  config_.model.num_key_value_heads = 4;
  config_.model.vocab_size = 24;
  const auto described = [this](int ranks) {
    std::string text;
    comm::run_ranks_as_threads(ranks, [&](comm::Communicator& group) {
      const auto model = nn::make_decoder(config_.model, at::kMeta);
      nn::parallelize_decoder(*model, config_.model, {}, testing::borrowed(group));
      std::string found;
      try {
        found = describe(apply_float8(config_, *model, c10::kCPU), c10::kCPU);
      } catch (const util::Error& error) {
        found = error.what();
      }
      if (group.rank() == 0) text = found;
    });
    return text;
  };
  EXPECT_THAT(described(2),
              HasSubstr("7 linear layers multiply in 8 bits, embedding and output head do not; on a CPU"));
  EXPECT_THAT(
      described(4),
      HasSubstr(
          "2 linear layers multiply in 8 bits, embedding and output head do not; 5 stay in bfloat16, "
          "because their sizes on each rank of mesh.model are not multiples of 16: "
          "model.layers.0.self_attn.k_proj, model.layers.0.self_attn.v_proj, model.layers.0.mlp.gate_proj"));
  EXPECT_THAT(
      described(8),
      HasSubstr(
          "training.float8 requires linear layers whose sizes on each rank of mesh.model are multiples of "
          "16, but 7 have other sizes and 0 are excluded by training.float8_exclude or "
          "mixed_precision.keep_float32; leave it out or make mesh.model smaller"));
}

TEST_F(Float8Training, LeavesOutWhatStaysInFloat32) {
  config_.mixed_precision.keep_float32 = {"*.q_proj.weight", "*norm*"};
  auto model = nn::make_decoder(config_.model, at::kMeta);
  EXPECT_EQ(apply_float8(config_, *model, c10::kCPU).excluded.size(), 3);
}

TEST_F(Float8Training, RefusesPatternsAndModelsWithoutLayers) {
  config_.training.float8_exclude = {"*.0.*", "*.k_porj.*"};
  EXPECT_EQ(refusal(),
            "training.float8_exclude: the pattern \"*.k_porj.*\" must match weights of linear "
            "layers such as model.layers.1.self_attn.q_proj.weight, but matches none; did you mean "
            "\"*.k_proj.*\"?");
  config_.training.float8_exclude.clear();
  config_.model.hidden_size = 20;
  EXPECT_EQ(refusal(),
            "training.float8 requires linear layers whose sizes are multiples of 16, but 21 have "
            "other sizes and 0 are excluded by training.float8_exclude or "
            "mixed_precision.keep_float32; leave it out");
}

}  // namespace
}  // namespace fsdp::train
