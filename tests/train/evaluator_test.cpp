#include "train/evaluator.h"

#include <gtest/gtest.h>

#include "nn/loss.h"
#include "support/sharded_run.h"
#include "support/tiny_config.h"

namespace fsdp::train {
namespace {

// 7 samples on up to 4 ranks with 2 rows a batch: some ranks have half a batch, some none.
TEST(ValidationLoss, IsTheExactMeanWhateverTheSplit) {
  testing::TemporaryFolder folder;
  config::Config config = testing::tiny_config(folder);
  data::ValidationLoader whole(config.data, config.model.vocab_size, 7, {});
  ASSERT_EQ(whole.num_samples(), 7);
  double expected = 0;
  auto plain = testing::make_initialized(config.model);
  for (int64_t i = 0; i < whole.num_batches(); ++i) {
    data::Batch batch = whole.batch(i);
    double mean = nn::next_token_loss(plain->forward(batch.inputs), batch.targets).item<double>();
    expected += mean * static_cast<double>(batch.valid_rows) / 7;
  }
  for (int world : {1, 2, 3, 4}) {
    comm::run_ranks_as_threads(world, [&](comm::Communicator& communicator) {
      auto model = testing::make_initialized(config.model);
      auto engine = shard::fully_shard(*model, config.fsdp, testing::borrowed(communicator));
      data::ValidationLoader loader(config.data, config.model.vocab_size, 7, {communicator.rank(), world});
      EXPECT_NEAR(validation_loss(*model, loader, communicator), expected, 1e-6) << world;
      EXPECT_EQ(engine->live_unsharded_bytes(), 0);
    });
  }
}

}  // namespace
}  // namespace fsdp::train
