// The figures of a GPU's memory, against tensors of known sizes.

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include "util/cuda.h"

namespace fsdp::util {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

at::Tensor bytes_on_gpu(int64_t bytes) {
  return at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(at::kCUDA, 0));
}

TEST(CudaMemory, CountsTensorsAndTheirPeak) {
  set_cuda_device(0);
  const int64_t before = cuda_memory(0).allocated_bytes;
  at::Tensor kept = bytes_on_gpu(64 * kMiB);
  reset_cuda_peak_memory(0);
  bytes_on_gpu(32 * kMiB);
  const CudaMemory memory = cuda_memory(0);
  EXPECT_EQ(memory.allocated_bytes, before + 64 * kMiB);
  EXPECT_EQ(memory.peak_allocated_bytes, before + 96 * kMiB);
  EXPECT_GE(memory.reserved_bytes, 96 * kMiB);
  EXPECT_GE(memory.peak_reserved_bytes, memory.reserved_bytes);
  reset_cuda_peak_memory(0);
  EXPECT_EQ(cuda_memory(0).peak_allocated_bytes, before + 64 * kMiB);
}

TEST(CudaDevice, TellsWhatItIs) {
  const CudaDevice device = cuda_device(0);
  EXPECT_FALSE(device.name.empty());
  EXPECT_FALSE(device.bus_id.empty());
  EXPECT_GE(std::stod(device.capability), 7.5);  // what CUDA 13 supports
  EXPECT_GT(device.memory_bytes, 256 * kMiB);
}

}  // namespace
}  // namespace fsdp::util
