#pragma once

// NVIDIA GPUs that this program can use, and their memory. Both flavours of the build have the same functions
// (cuda/cuda.cpp, cuda_absent.cpp), so that no other code distinguishes the flavours.
//
// GPUs are numbered from 0 among those listed in CUDA_VISIBLE_DEVICES. The first call loads the driver: a
// process must not fork after it.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

namespace fsdp::util {

struct CudaStatus {
  int devices = 0;       ///< GPUs that the program can use
  std::string obstacle;  ///< reason why there is none, such as "no NVIDIA driver"; empty if there are some
  std::string remedy;    ///< remedy for the obstacle
};

/// Whether this is the CUDA flavour of the build.
bool built_with_cuda();

/// Returns the status, which is determined once. Never throws.
const CudaStatus& cuda_status();

/// Throws Error(kUsage) with obstacle and remedy if there is no GPU for `who`, such as "training.device".
void require_cuda(const std::string& who);

/// Makes GPU `index` the calling thread's current device, and initializes it. Throws Error(kUsage) if there
/// is no GPU of that index, as do the functions below.
void set_cuda_device(int index);

struct CudaDevice {
  std::string name;        ///< "NVIDIA H100 80GB HBM3"
  std::string capability;  ///< "9.0"
  std::string bus_id;      ///< "0000:1b:00.0"
  int64_t memory_bytes = 0;
};

CudaDevice cuda_device(int index);

/// Statistics of libtorch's caching allocator in this process.
struct CudaMemory {
  int64_t allocated_bytes = 0, peak_allocated_bytes = 0;  ///< memory of tensors
  int64_t reserved_bytes = 0, peak_reserved_bytes = 0;    ///< memory taken from the GPU
  int64_t retries = 0;  ///< allocations that first had to free cached memory
};

/// Returns the statistics of GPU `index`. Peaks are since the start or the last reset_cuda_peak_memory().
CudaMemory cuda_memory(int index);
void reset_cuda_peak_memory(int index);

/// Bytes in use on the whole GPU, including NCCL's buffers, the CUDA context and other processes beside the
/// allocator's memory. Takes a fraction of a millisecond.
int64_t cuda_bytes_in_use(int index);

/// Allocates host memory of exactly this size, more than 0, which GPU `index` copies from and to concurrently
/// with the host. (libtorch's allocator for such memory rounds sizes up to powers of two.)
void* allocate_pinned(int index, size_t bytes);
/// Frees that memory. Requires: copies from and to it have ended.
void free_pinned(int index, void* memory) noexcept;

/// Makes libtorch's allocator keep its last 100,000 events on GPU `index` with their C++ stacks (some
/// microseconds each). When the GPU's memory is exhausted, the allocator writes these events and all
/// allocations to `file` before it throws, so before anything is freed. A file that cannot be written is a
/// warning. May be called once in a process, for one GPU.
///
/// The format is that of Python's torch.cuda.memory._dump_snapshot(), for
/// https://docs.pytorch.org/memory_viz. Functions have the names that libraries export. The environment
/// variable TORCH_SYMBOLIZE_MODE=addr2line adds line numbers, if there is debug information, in minutes.
void record_cuda_memory_history(int index, const std::filesystem::path& file);
/// Writes such a file now. Throws Error(kIo).
void write_cuda_memory_snapshot(const std::filesystem::path& file);

}  // namespace fsdp::util
