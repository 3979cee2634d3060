#include "base/tensor/tensor_memory.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <optional>
#include <thread>

#include "base/util/matrix_units.h"

namespace fsdp::util {
namespace {

TEST(TensorMemory, CountsWhatLivesAndTheMostThatDid) {
  TensorMemory memory;
  at::Tensor kept = at::empty({100}, at::kFloat);
  EXPECT_EQ(memory.live_bytes(), 400);
  { at::Tensor gone = at::empty({50}, at::kFloat); }
  EXPECT_EQ(memory.live_bytes(), 400);
  EXPECT_EQ(memory.peak_bytes(), 600);
  memory.reset_peak();
  EXPECT_EQ(memory.peak_bytes(), 400);
}

TEST(TensorMemory, SeesTensorsOfOtherThreads) {
  TensorMemory memory;
  at::Tensor made;
  std::thread([&] { made = at::zeros({100}, at::kFloat); }).join();
  EXPECT_EQ(memory.live_bytes(), 400);
}

TEST(TensorMemory, LeavesOutWhatWasThereBefore) {
  std::optional<at::Tensor> before = at::empty({100}, at::kFloat);
  TensorMemory memory;
  before.reset();
  EXPECT_EQ(memory.live_bytes(), 0);
}

TEST(TensorMemory, LeavesOutWhatAnEarlierOneCounted) {
  at::Tensor outlives;
  {
    TensorMemory first;
    outlives = at::ones({100}, at::kFloat);
  }
  EXPECT_EQ(outlives.sum().item<float>(), 100);
  TensorMemory second;
  outlives.reset();
  EXPECT_EQ(second.live_bytes(), 0);
}

// Kernels for low precision take scratch memory from the allocator itself.
TEST(TensorMemory, ServesMatrixProductsInBfloat16) {
  keep_onednn_from_broken_tiles();
  TensorMemory memory;
  at::Tensor a = at::ones({64, 64}, at::kBFloat16);
  EXPECT_EQ(at::mm(a, a).sum().item<float>(), 64.0f * 64 * 64);
}

}  // namespace
}  // namespace fsdp::util
