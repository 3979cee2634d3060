#include "shard/engine/unit_storage.h"

#include <gtest/gtest.h>

#include "base/util/error.h"
#include "comm/api/communicator.h"
#include "comm/threads/thread_communicator.h"
#include "support/readable.h"
#include "support/sharded_run.h"

namespace fsdp::shard {
namespace {

std::vector<NamedParameter> stored_parameters(torch::nn::Module& module) {
  std::vector<NamedParameter> parameters;
  for (const auto& parameter : module.named_parameters())
    parameters.push_back({parameter.key(), parameter.value()});
  return parameters;
}

std::shared_ptr<BufferPool> pool_of(comm::Communicator& communicator) {
  return std::make_shared<BufferPool>(testing::borrowed(communicator));
}

/// A storage as rank and size of the communicator say.
struct TestStorage {
  explicit TestStorage(torch::nn::Module& module, comm::Communicator& communicator,
                       const StorageOptions& options = {})
      : pool(pool_of(communicator)),
        storage(stored_parameters(module), {communicator.rank(), communicator.world_size()}, options, pool) {}
  int64_t live_bytes() const { return pool->account().live(); }

  std::shared_ptr<BufferPool> pool;
  UnitStorage storage;
};

TEST(UnitStorage, KeepsOneShardOfThePaddedParameters) {
  comm::run_ranks_as_threads(4, [](comm::Communicator& communicator) {
    testing::MatrixStage stage(3, 3);
    at::Tensor before = stage.weight().detach().clone().flatten();
    TestStorage test(stage, communicator);
    UnitStorage& storage = test.storage;
    EXPECT_EQ(storage.shard().numel(), 3);
    for (int64_t i = 0; i < 3; ++i) {
      int64_t at = communicator.rank() * 3 + i;
      EXPECT_EQ(storage.shard()[i].item<float>(), at < 9 ? before[at].item<float>() : 0.0f);
    }
    EXPECT_FALSE(storage.unsharded_is_allocated());
    EXPECT_EQ(test.live_bytes(), 0);
  });
}

TEST(UnitStorage, ParametersComeBackWhenTheBufferIsFilledAgain) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& communicator) {
    testing::MatrixStage stage(3, 2);
    at::Tensor before = stage.weight().detach().clone();
    TestStorage test(stage, communicator);
    UnitStorage& storage = test.storage;
    for (int round = 0; round < 3; ++round) {
      storage.allocate_gathered();
      communicator.all_gather(storage.unsharded(), storage.shard(), {.unit = "test"})->wait();
      EXPECT_FALSE(testing::is_readable(stage.weight()));
      storage.show_parameters();
      EXPECT_TRUE(at::equal(stage.weight(), before));
      EXPECT_EQ(test.live_bytes(), 6 * 4);
      storage.free_unsharded();
    }
  });
}

TEST(UnitStorage, InAGroupOfOneTheParametersAreViewsOfTheShard) {
  comm::SingleCommunicator communicator;
  testing::MatrixStage stage(3, 2);
  TestStorage test(stage, communicator);
  UnitStorage& storage = test.storage;
  EXPECT_EQ(stage.weight().data_ptr(), storage.shard().data_ptr());
  EXPECT_EQ(test.live_bytes(), 0);
}

TEST(UnitStorage, AutogradAccumulatesIntoOneFlatBuffer) {
  comm::SingleCommunicator communicator;
  testing::MatrixStage stage(3, 2);
  TestStorage test(stage, communicator);
  UnitStorage& storage = test.storage;
  storage.attach_gradients();
  (stage.weight() * 2).sum().backward();
  (stage.weight() * 3).sum().backward();
  at::Tensor gradients = storage.gradients().detach();
  EXPECT_TRUE(at::equal(gradients, at::full({6}, 5.0f)));
  EXPECT_FALSE(testing::is_readable(stage.weight().grad()));
  storage.gradients().drop();
  EXPECT_FALSE(stage.weight().grad().defined());
}

TEST(UnitStorage, RefusesParametersThatAreNotFloat32) {
  comm::SingleCommunicator communicator;
  testing::MatrixStage stage(3, 2);
  stage.to(at::kBFloat16);
  EXPECT_THROW(TestStorage(stage, communicator), util::Error);
}

}  // namespace
}  // namespace fsdp::shard
