// The history of the caching allocator, as PyTorch writes it (torch/csrc/cuda/memory_snapshot.h).

#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/csrc/cuda/memory_snapshot.h>

#include <cstdlib>
#include <exception>
#include <string>

#include "util/cuda.h"
#include "util/error.h"
#include "util/file.h"
#include "util/log.h"

namespace fsdp::util {
namespace {

constexpr size_t kEvents = 100'000;

/// At the moment at which there is no room, on the thread that asked for it. It must not throw: what is to be
/// thrown is that the memory is full.
void snapshot_full_memory(const std::filesystem::path& file) {
  try {
    write_cuda_memory_snapshot(file);
  } catch (const std::exception& error) {
    log_warning(concat("no snapshot of the GPU's memory, which is full: ", error.what()));
  }
}

}  // namespace

void record_cuda_memory_history(int index, const std::filesystem::path& file) {
  (void)cuda_memory(index);  // prepares the GPU, and refuses one that is not there
  // Else the names of functions are asked of a process for each library, one after another.
  ::setenv("TORCH_SYMBOLIZE_MODE", "dladdr", /*overwrite=*/0);
  const std::string all = "all";  // a literal would be taken for a bool by the other overload
  torch::cuda::_record_memory_history(/*enabled=*/all, /*context=*/all, /*stacks=*/all, kEvents);
  c10::cuda::CUDACachingAllocator::attachOutOfMemoryObserver(
      [index, file](int64_t device, size_t, size_t, size_t) {
        if (device == index) snapshot_full_memory(file);
      });
}

void write_cuda_memory_snapshot(const std::filesystem::path& file) {
  require_cuda("a snapshot of GPU memory");
  std::error_code ignored;  // of a folder that cannot be made, the file tells
  if (file.has_parent_path()) std::filesystem::create_directories(file.parent_path(), ignored);
  write_file_atomically(file, torch::cuda::_memory_snapshot_pickled());
}

}  // namespace fsdp::util
