// NCCL on real GPUs; ranks are threads of this process. One GPU shows a world of one, more show two ranks.

#include "comm/nccl/nccl_communicator.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <exception>
#include <functional>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "base/device/cuda.h"
#include "base/util/error.h"

namespace fsdp::comm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const CallSite kSite{.unit = "layer", .pass = "forward"};

NcclPlace place_of(RunStore store, int rank, int size, int device) {
  return {.store = std::move(store),
          .identity = run_identity({rank, size, rank, size, "127.0.0.1", 0}),
          .device = device,
          .timeout = std::chrono::seconds(10)};
}

RunStore new_store() { return c10::make_intrusive<c10d::HashStore>(); }

at::Tensor numbers(int64_t count, int device, at::ScalarType dtype = at::kFloat) {
  return at::arange(count, at::TensorOptions().device(at::kCUDA, static_cast<c10::DeviceIndex>(device)))
      .to(dtype);
}

/// Each rank in a thread, on the GPU of its number or all on the first; throws the first rank's failure.
void run_ranks(int size, bool one_gpu, const std::function<void(Communicator&)>& body) {
  const RunStore store = new_store();
  std::vector<std::exception_ptr> failures(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(*make_nccl_communicator(place_of(store, rank, size, one_gpu ? 0 : rank)));
      } catch (...) {
        failures[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

class OneRank : public ::testing::Test {
 protected:
  std::shared_ptr<Communicator> communicator = make_nccl_communicator(place_of(new_store(), 0, 1, 0));
};

TEST_F(OneRank, GathersAndScattersItsOwn) {
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kLong}) {
    const at::Tensor input = numbers(1000, 0, dtype);
    at::Tensor output = communicator->allocate(1000, dtype);
    EXPECT_EQ(output.device(), at::Device(at::kCUDA, 0));
    communicator->all_gather(output, input, kSite)->wait();
    EXPECT_TRUE(at::equal(output, input)) << dtype;
    output.zero_();
    communicator->reduce_scatter(output, input, kSite)->wait();
    EXPECT_TRUE(at::equal(output, input)) << dtype;
  }
}

TEST_F(OneRank, GathersInPlace) {
  at::Tensor whole = numbers(64, 0);
  communicator->all_gather(whole, whole, kSite)->wait();
  EXPECT_TRUE(at::equal(whole, numbers(64, 0)));
}

TEST_F(OneRank, ShiftsToItself) {
  for (int64_t count : {0, 1, 1001}) {
    const at::Tensor input = numbers(count, 0, at::kBFloat16);
    at::Tensor output = communicator->allocate(count, at::kBFloat16);
    communicator->shift(output, input, kSite)->wait();
    EXPECT_TRUE(at::equal(output, input)) << count;
  }
}

TEST_F(OneRank, ReducesAndBroadcastsItsOwn) {
  at::Tensor tensor = numbers(64, 0);
  communicator->all_reduce(tensor, ReduceOp::kSum, kSite)->wait();
  communicator->all_reduce(tensor, ReduceOp::kMax, kSite)->wait();
  communicator->broadcast(tensor, 0, kSite)->wait();
  communicator->barrier(kSite);
  EXPECT_TRUE(at::equal(tensor, numbers(64, 0)));
}

TEST_F(OneRank, KeepsTheOrderOfTheCurrentStream) {
  const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool(/*isHighPriority=*/true, 0);
  const c10::cuda::CUDAStreamGuard current(stream);
  constexpr int64_t kCount = 1 << 22;
  at::Tensor input = at::full({kCount}, 0.0f, at::TensorOptions().device(at::kCUDA, 0));
  at::Tensor output = communicator->allocate(kCount, at::kFloat);
  for (int round = 1; round <= 20; ++round) {
    input.fill_(round);
    communicator->all_gather(output, input, kSite)->wait();
    input.fill_(-1);  // after the gather, which reads it
    EXPECT_EQ(output.sum().item<float>(), static_cast<float>(round) * kCount);
  }
}

TEST_F(OneRank, HasASubgroupOfItself) {
  const auto group = communicator->subgroup("data", {0});
  at::Tensor tensor = group->allocate(8, at::kFloat).fill_(3);
  group->all_reduce(tensor, ReduceOp::kSum, kSite)->wait();
  EXPECT_EQ(tensor.sum().item<float>(), 24);
  EXPECT_EQ(group->backend_name(), "nccl");
}

TEST(SeveralRanks, OnOneGpuAreRefusedWithTheRemedy) {
  try {
    run_ranks(2, true, [](Communicator&) { ADD_FAILURE() << "NCCL has connected them"; });
    FAIL();
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("set comm.backend to gloo"), HasSubstr("NCCL_HOSTID")));
  }
}

class TwoGpus : public ::testing::Test {
 protected:
  void SetUp() override {
    const int devices = util::cuda_status().devices;
    if (devices < 2) GTEST_SKIP() << "needs 2 GPUs, found " << devices;
  }
};

TEST_F(TwoGpus, ComputeWhatEachCollectivePromises) {
  run_ranks(2, false, [](Communicator& world) {
    const int rank = world.rank();
    const at::Tensor mine = numbers(4, rank) + 10 * rank;
    at::Tensor whole = world.allocate(8, at::kFloat);
    world.all_gather(whole, mine, kSite)->wait();
    EXPECT_TRUE(at::equal(whole.cpu(), at::tensor({0.f, 1.f, 2.f, 3.f, 10.f, 11.f, 12.f, 13.f})));
    at::Tensor part = world.allocate(4, at::kFloat);
    world.reduce_scatter(part, whole, kSite)->wait();
    EXPECT_TRUE(at::equal(part, mine * 2));
    world.all_reduce(part, ReduceOp::kMax, kSite)->wait();
    EXPECT_EQ(part.max().item<float>(), 26);
    world.broadcast(part.fill_(rank), 1, kSite)->wait();
    EXPECT_EQ(part.sum().item<float>(), 4);
    world.shift(part, mine, kSite)->wait();
    EXPECT_TRUE(at::equal(part.cpu(), at::arange(4, at::kFloat) + 10 * (1 - rank)));
    world.broadcast(part.fill_(1), 1, kSite)->wait();
    world.subgroup("alone", {rank})->all_reduce(part, ReduceOp::kSum, kSite)->wait();
    EXPECT_EQ(part.sum().item<float>(), 4);
    world.barrier(kSite);
  });
}

TEST_F(TwoGpus, FailInTimeAndNameTheRankThatDoesNotCome) {
  try {
    run_ranks(2, false, [](Communicator& world) {
      if (world.rank() == 1) return std::this_thread::sleep_for(std::chrono::seconds(20));
      at::Tensor tensor = numbers(4, 0);
      world.all_reduce(tensor, ReduceOp::kSum, kSite)->wait();
      world.barrier(kSite);
    });
    FAIL();
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("all_reduce of layer (forward) failed on rank 0 of 2"),
                                    HasSubstr("no answer from rank 1")));
  }
}

}  // namespace
}  // namespace fsdp::comm
