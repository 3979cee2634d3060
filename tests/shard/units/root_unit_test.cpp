#include "shard/units/root_unit.h"

#include <gtest/gtest.h>

#include "shard/units/unit_sizes.h"
#include "support/decoder_outline.h"

namespace fsdp::shard {
namespace {

/// A llama of four blocks: attention of 65,536 parameters, feed-forward of 135,168, norms of 256.
BlocksInRoot found_with(const ShardOptions& options, int ranks = 4) {
  nn::ModelOptions model;
  model.vocab_size = 512;
  model.hidden_size = 128;
  model.intermediate_size = 352;
  model.num_hidden_layers = 4;
  model.num_attention_heads = model.num_key_value_heads = 4;
  return blocks_in_root(unit_sizes(testing::decoder_outline(model), options, {.data = ranks}));
}

ShardOptions from(int64_t min_num_params) {
  ShardOptions options;
  options.min_num_params = min_num_params;
  return options;
}

TEST(BlocksInRoot, AreAttentionsWhereFeedForwardsAloneAreUnits) {
  const BlocksInRoot found = found_with(from(100'000));
  EXPECT_EQ(found.blocks, 4);
  EXPECT_EQ(found.first, "model.layers.0");
  EXPECT_EQ(found.last, "model.layers.3");
  EXPECT_EQ(found.least_numel, 65'536 + 256);
  EXPECT_EQ(found.numel, 4 * found.least_numel);
  EXPECT_EQ(
      found.text(100'000),
      "the root unit holds 263,168 parameters of 4 blocks (model.layers.0 ... model.layers.3), which stay "
      "gathered from the beginning of forward to the end of backward and take 1.0 MiB on "
      "every rank; fsdp.min_num_params must be at most 65792 to make each block a unit, "
      "but is 100000");
  EXPECT_EQ(found_with(from(found.least_numel)).text(found.least_numel), "") << "what is advised mends it";
}

TEST(BlocksInRoot, AreNoneWhereBlocksAreUnitsOrNothingIsGathered) {
  EXPECT_EQ(found_with(from(200'000)).blocks, 0);
  EXPECT_EQ(found_with(from(200'000)).text(200'000), "");
  EXPECT_EQ(found_with(from(100'000), 1).blocks, 0);
  ShardOptions whole = from(100'000);
  whole.strategy = "no_shard";
  EXPECT_EQ(found_with(whole).blocks, 0);
  ShardOptions norms = from(1'000'000);
  norms.wrap_stages = {"attention", "feed_forward"};
  norms.exclude_stages = {};
  EXPECT_EQ(found_with(norms).blocks, 0) << "norms are next to nothing";
}

TEST(BlocksInRoot, AreNoMatterOfTheThresholdWhereTheirStagesAreExcluded) {
  ShardOptions options = from(1000);
  options.exclude_stages = {"attention", "feed_forward", "block"};
  EXPECT_NE(found_with(options).text(1000).find("leave their stages out of fsdp.exclude_stages"),
            std::string::npos);
}

}  // namespace
}  // namespace fsdp::shard
