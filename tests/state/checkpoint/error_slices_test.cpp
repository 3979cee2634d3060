#include "state/checkpoint/error_slices.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "support/layout_under_test.h"
#include "support/on_mesh.h"
#include "support/tiny_models.h"

namespace fsdp::checkpoint {
namespace {

TEST(ErrorSlices, AreViewsOfEachRanksErrors) {
  for (const auto& [strategy, optimizer] : std::vector<std::pair<const char*, const char*>>{
           {"full_shard", "replicated"}, {"hybrid_shard", "replicated"}, {"hybrid_shard", "global"}}) {
    testing::on_mesh({.dcn = 2, .data = 2, .ranks_of_host = 2}, [&](const comm::Mesh& mesh) {
      shard::ShardOptions options;
      options.min_num_params = 200;
      options.strategy = strategy;
      options.hybrid_optimizer = optimizer;
      options.reduce_dtype = "int4";
      options.error_feedback = true;
      auto model = testing::make_initialized(testing::tiny_options());
      auto engine = testing::shard_under_test(*model, options, mesh);
      const auto before = error_slices(*engine);
      testing::loss_of(*model, testing::token_rows(mesh.world()->rank(), 2, 9, 17)).backward();
      const auto after = error_slices(*engine);
      ASSERT_EQ(before.size(), after.size());
      ASSERT_FALSE(after.empty());
      bool any = false;
      for (size_t i = 0; i < after.size(); ++i) {
        EXPECT_TRUE(after[i].name.starts_with("error_feedback/")) << after[i].name;
        EXPECT_EQ(before[i].name, after[i].name);
        EXPECT_TRUE(before[i].data.is_alias_of(after[i].data));
        EXPECT_EQ(after[i].shape, (std::vector<int64_t>{4, after[i].data.numel()}));
        EXPECT_EQ(after[i].range.begin, mesh.world()->rank() * after[i].data.numel());
        any = any || after[i].data.abs().max().item<float>() > 0;
      }
      EXPECT_TRUE(any);
    });
  }
}

TEST(ErrorSlices, AreNoneWithoutErrorFeedback) {
  testing::on_mesh({.data = 2, .ranks_of_host = 1}, [](const comm::Mesh& mesh) {
    shard::ShardOptions options;
    options.min_num_params = 200;
    options.reduce_dtype = "int4";
    auto model = testing::make_initialized(testing::tiny_options());
    EXPECT_TRUE(error_slices(*testing::shard_under_test(*model, options, mesh)).empty());
  });
}

}  // namespace
}  // namespace fsdp::checkpoint
