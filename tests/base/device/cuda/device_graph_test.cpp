// CUDA graphs on a GPU.

#include "base/device/device_graph.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>

#include "base/util/error.h"

namespace fsdp::util {
namespace {

const at::TensorOptions kOnGpu = at::TensorOptions().dtype(at::kFloat).device(at::kCUDA, 0);

/// On a thread whose current stream is its own.
void on_own_stream(const std::function<void()>& body) {
  std::exception_ptr failure;
  std::thread thread([&] {
    try {
      use_own_cuda_stream(0);
      body();
    } catch (...) {
      failure = std::current_exception();
    }
  });
  thread.join();
  if (failure) std::rethrow_exception(failure);
}

TEST(CudaGraphs, RunWhenRecordedAndAgainOnWhatLiesThereThen) {
  on_own_stream([] {
    const auto pool = cuda_graph_pools(0)();
    at::Tensor x = at::full({1000}, 2.0f, kOnGpu), twice, more;
    const auto first = pool->record([&] { twice = x + x; });
    const auto second = pool->record([&] { more = twice + 1; });
    EXPECT_EQ(more.sum().item<float>(), 5000);
    x.fill_(3);
    first->launch();
    second->launch();
    EXPECT_EQ(more.sum().item<float>(), 7000);
  });
}

TEST(CudaGraphs, ThrowWhatIsThrownWhileTheyAreRecordedAndGoOn) {
  on_own_stream([] {
    const auto pool = cuda_graph_pools(0)();
    at::Tensor x = at::full({10}, 2.0f, kOnGpu), y;
    EXPECT_THROW(pool->record([&] {
      y = x + 1;
      throw std::runtime_error("thrown by a test");
    }),
                 std::runtime_error);
    const auto graph = cuda_graph_pools(0)()->record([&] { y = x * 2; });
    EXPECT_EQ(y.sum().item<float>(), 40);
  });
}

TEST(CudaGraphs, AreNotOfTheDefaultStream) {
  EXPECT_THROW(cuda_graph_pools(0)()->record([] {}), Error);
}

}  // namespace
}  // namespace fsdp::util
