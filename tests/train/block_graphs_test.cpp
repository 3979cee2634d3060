#include "train/block_graphs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/communicator.h"
#include "shard/fully_shard.h"
#include "support/tiny_models.h"
#include "util/error.h"

namespace fsdp::train {
namespace {

class NoPool final : public util::DeviceGraphPool {
 public:
  std::unique_ptr<util::DeviceGraph> record(const std::function<void()>&) override { return nullptr; }
};

std::string refusal(const std::function<void()>& action) {
  try {
    action();
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), util::ErrorKind::kUsage);
    return error.what();
  }
  return "none";
}

TEST(BlockGraphs, AreOfAGpu) {
  config::Config config;
  prepare_graphs(config, at::kCPU);
  config.training.cuda_graphs = true;
  EXPECT_EQ(refusal([&] { prepare_graphs(config, at::kCPU); }),
            "training.cuda_graphs: expected a GPU; found training on cpu; leave it out");
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
              ::testing::HasSubstr("found unit model.layers.0.mlp inside block model.layers.0, which"));
}

TEST(BlockGraphs, AreCountedInALine) {
  EXPECT_EQ(describe({.recorded = 72, .launched = 4776, .plain = 2}),
            "CUDA graphs: 72 recorded, 4,776 launched, 2 passes through blocks kernel by kernel");
}

}  // namespace
}  // namespace fsdp::train
