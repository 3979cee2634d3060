#include "shard/engine/buffer_pool.h"

#include <gtest/gtest.h>

#include <thread>

#include "comm/api/communicator.h"

namespace fsdp::shard {
namespace {

class BufferPoolTest : public ::testing::Test {
 protected:
  std::shared_ptr<BufferPool> pool_ =
      std::make_shared<BufferPool>(std::make_shared<comm::SingleCommunicator>());
};

TEST_F(BufferPoolTest, GivesTheSameMemoryAgainOnceItKnowsHowMuchIsInUseAtOnce) {
  const int64_t mib = 1 << 20;
  void* former[2] = {};
  for (int step = 0; step < 4; ++step) {
    c10::DataPtr parameters = pool_->acquire(4 * mib, BufferKind::kParameters);
    c10::DataPtr gradients = pool_->acquire(8 * mib, BufferKind::kGradients);
    EXPECT_EQ(pool_->held_bytes(), 12 * mib);
    if (step > 1) {
      EXPECT_EQ(parameters.get(), former[0]);
      EXPECT_EQ(gradients.get(), former[1]);
    }
    former[0] = parameters.get();
    former[1] = gradients.get();
  }
}

TEST_F(BufferPoolTest, AsksForNoMemoryInTheStepsAfterTheFirstWhateverTheSizes) {
  const int64_t mib = 1 << 20;
  for (int step = 0; step < 3; ++step) {
    std::vector<c10::DataPtr> in_use;
    for (int64_t size : {5, 5, 10, 3, 10, 5}) {
      in_use.push_back(pool_->acquire(size * mib, BufferKind::kParameters));
      if (in_use.size() > 2) in_use.erase(in_use.begin());
      if (step > 0) {
        EXPECT_EQ(pool_->held_bytes(), 30 * mib);
      }
    }
    EXPECT_EQ(pool_->account().peak, 23 * mib) << "the arena has holes of 7 MiB then";
  }
}

TEST_F(BufferPoolTest, HasWhatIsReservedInOnePieceFromTheFirstBufferOn) {
  const int64_t mib = 1 << 20;
  pool_->reserve({.length = 12 * mib, .way = 1});
  EXPECT_EQ(pool_->held_bytes(), 0);
  for (int step = 0; step < 2; ++step) {
    c10::DataPtr parameters = pool_->acquire(4 * mib, BufferKind::kParameters);
    c10::DataPtr gradients = pool_->acquire(8 * mib, BufferKind::kGradients);
    EXPECT_EQ(pool_->held_bytes(), 12 * mib);
    EXPECT_EQ(static_cast<char*>(gradients.get()), static_cast<char*>(parameters.get()) + 4 * mib);
  }
  {
    c10::DataPtr more = pool_->acquire(13 * mib, BufferKind::kParameters);
    EXPECT_EQ(pool_->held_bytes(), 25 * mib);
  }
  c10::DataPtr again = pool_->acquire(13 * mib, BufferKind::kParameters);
  EXPECT_EQ(pool_->held_bytes(), 13 * mib) << "it grows where more was needed";
}

TEST_F(BufferPoolTest, CountsParametersAndGradientsApart) {
  c10::DataPtr parameters = pool_->acquire(1000, BufferKind::kParameters);
  {
    at::Tensor gradients = pool_->acquire_tensor(50, at::kFloat, BufferKind::kGradients);
    EXPECT_EQ(pool_->account().live_parameters, 1000);
    EXPECT_EQ(pool_->account().live_gradients, 200);
  }
  parameters.clear();
  c10::DataPtr later = pool_->acquire(300, BufferKind::kGradients);
  BufferAccount account = pool_->account();
  EXPECT_EQ(account.live(), 300);
  EXPECT_EQ(account.peak_parameters, 1000);
  EXPECT_EQ(account.peak_gradients, 300);
  EXPECT_EQ(account.peak, 1200);  // of both together, not the sum of the two peaks
  pool_->reset_peaks();
  EXPECT_EQ(pool_->account().peak, 300);
}

TEST_F(BufferPoolTest, HoldsNoMoreThanWasInUseAtOnce) {
  const int64_t mib = 1 << 20;
  for (int round = 0; round < 3; ++round) {
    for (int64_t size : {64, 8, 32, 8, 128, 4}) pool_->acquire(size * mib, BufferKind::kParameters);
  }
  EXPECT_EQ(pool_->account().peak, 128 * mib);
  EXPECT_LE(pool_->held_bytes(), 128 * mib);
}

TEST_F(BufferPoolTest, ABufferMayOutliveItsPoolsOwner) {
  at::Tensor tensor = pool_->acquire_tensor(10, at::kFloat, BufferKind::kGradients);
  pool_.reset();
  tensor.fill_(2);
  EXPECT_EQ(tensor.sum().item<float>(), 20);
}

TEST_F(BufferPoolTest, ThreadsMayTakeAndGiveBackAtOnce) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      for (int i = 0; i < 500; ++i) {
        at::Tensor tensor = pool_->acquire_tensor(100 + 10 * t, at::kInt, BufferKind::kGradients);
        tensor.fill_(t);
        EXPECT_TRUE(tensor.eq(t).all().item<bool>());
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(pool_->account().live(), 0);
}

}  // namespace
}  // namespace fsdp::shard
