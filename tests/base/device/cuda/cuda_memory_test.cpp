// Memory statistics of a GPU against tensors of known sizes, and the snapshot written when it is out of
// memory.

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <vector>

#include "base/device/cuda.h"
#include "base/util/file.h"
#include "support/temporary_folder.h"

namespace fsdp::util {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

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
  EXPECT_GE(cuda_bytes_in_use(0), memory.reserved_bytes);
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

/// One test, because a process records once.
TEST(CudaMemorySnapshot, IsWrittenWhenThereIsNoRoomAndWhenAskedFor) {
  testing::TemporaryFolder folder;
  const fs::path full = folder.path() / "run" / "memory.pickle", now = folder.path() / "now.pickle";
  set_cuda_device(0);
  record_cuda_memory_history(0, full);
  const at::Tensor kept = bytes_on_gpu(int64_t{1} << 20);
  EXPECT_FALSE(fs::exists(full));
  EXPECT_THROW(bytes_on_gpu(2 * cuda_device(0).memory_bytes), c10::OutOfMemoryError);
  // Keys of PyTorch's pickle, and the event that it was written for.
  const auto has_history = AllOf(HasSubstr("segments"), HasSubstr("device_traces"),
                                 HasSubstr("active_allocated"), HasSubstr("oom"));
  EXPECT_THAT(read_file(full), has_history);
  EXPECT_THAT(read_file(full), HasSubstr("at::"));  // functions that asked for memory
  write_cuda_memory_snapshot(now);
  EXPECT_THAT(read_file(now), has_history);
}

}  // namespace
}  // namespace fsdp::util
