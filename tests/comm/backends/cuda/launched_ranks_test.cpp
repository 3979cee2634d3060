// NCCL between processes with a GPU each, through the communicator of a run. Without a launcher it is
// skipped:
//
//   fsdp-launch --nproc-per-node 2 -- comm_gpu_test '--gtest_filter=LaunchedRanks.*'
//
// Nothing is computed on a device, so that the stand-in for CUDA (tests/cuda_standin) can run it in every
// mode.

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <utility>

#include "comm/api/launch_environment.h"
#include "comm/backends/make_communicator.h"

namespace fsdp::comm {
namespace {

class LaunchedRanks : public ::testing::Test {
 protected:
  void SetUp() override {
    const LaunchEnvironment environment = read_launch_environment();
    if (environment.world_size < 2) GTEST_SKIP() << "needs several processes, of fsdp-launch";
    device_ = at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(environment.local_rank));
    world_ = make_communicator(environment, {.backend = Backend::kNccl}, nullptr, {}, device_);
    size_ = world_->world_size();
  }
  void TearDown() override {
    if (world_) world_->barrier({.unit = "end"});
  }

  /// On the host, of the rank that is `steps` before this one.
  at::Tensor values(int64_t numel, int steps = 0) const {
    return at::arange(numel, at::kFloat) + 1000 * ((world_->rank() + 2 * size_ - steps) % size_);
  }

  at::Device device_ = at::kCPU;
  std::shared_ptr<Communicator> world_;
  int size_ = 1;
};

TEST_F(LaunchedRanks, PassTensorsAllTheWayAround) {
  // The last is sent by the stand-in in several parts.
  for (int64_t numel : {0, 1, 1001, 3'000'000}) {
    at::Tensor now = values(numel).to(device_);
    for (int step = 1; step <= size_; ++step) {
      at::Tensor next = world_->allocate(numel, at::kFloat);
      world_->shift(next, now, {.unit = "ring"})->wait();
      now = next;
      ASSERT_TRUE(at::equal(now.cpu(), values(numel, step))) << numel << " after " << step;
    }
  }
}

TEST_F(LaunchedRanks, ShiftInTwoGroupsBesideEachOther) {
  const std::shared_ptr<Communicator> twin = world_->duplicate("twin");
  constexpr int64_t kNumel = 50'000;
  at::Tensor key = values(kNumel).to(device_), value = key.clone();
  at::Tensor next_key = world_->allocate(kNumel, at::kFloat), next_value = twin->allocate(kNumel, at::kFloat);
  for (int round = 0; round < 10; ++round) {
    auto keys = world_->shift(next_key, key, {.unit = "keys"});
    auto values_shifted = twin->shift(next_value, value, {.unit = "values"});
    keys->wait();
    key.copy_(at::full({kNumel}, -1.0f));  // once it was sent
    values_shifted->wait();
    ASSERT_TRUE(at::equal(next_key.cpu(), values(kNumel, (round + 1) % size_)));
    ASSERT_TRUE(at::equal(next_value.cpu(), next_key.cpu()));
    std::swap(key, next_key);
    std::swap(value, next_value);
  }
}

}  // namespace
}  // namespace fsdp::comm
