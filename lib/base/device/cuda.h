#pragma once

// NVIDIA GPUs: which this program can use, and their memory. Both flavours of the build have the same
// functions (cuda/cuda.cpp, cuda_absent.cpp), so that nothing else needs to tell them apart.
//
// GPUs are numbered from 0 among those that CUDA_VISIBLE_DEVICES leaves. The first call loads the driver: a
// process must not fork after it.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

namespace fsdp::util {

struct CudaStatus {
  int devices = 0;       ///< GPUs that the program can use
  std::string obstacle;  ///< why there is none, such as "no NVIDIA driver"; empty if there are some
  std::string remedy;    ///< what to do about it
};

/// Whether this is the CUDA flavour of the build.
bool built_with_cuda();

/// Determined once; never throws.
const CudaStatus& cuda_status();

/// Throws Error(kUsage) with obstacle and remedy if there is no GPU. `who` names what needs one:
/// "training.device".
void require_cuda(const std::string& who);

/// Makes GPU `index` the calling thread's current device, and initializes it. Throws Error(kUsage) if there
/// is none of that index, as do the functions below.
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
  int64_t allocated_bytes = 0, peak_allocated_bytes = 0;  ///< of tensors
  int64_t reserved_bytes = 0, peak_reserved_bytes = 0;    ///< taken from the GPU
  int64_t retries = 0;  ///< allocations that first had to free cached memory
};

/// Peaks are since the start or the last reset_cuda_peak_memory().
CudaMemory cuda_memory(int index);
void reset_cuda_peak_memory(int index);

/// Of the whole GPU, by everything: beside the allocator's memory, NCCL's buffers, the CUDA context and other
/// processes. Takes a fraction of a millisecond.
int64_t cuda_bytes_in_use(int index);

/// Host memory of exactly this size, more than 0, which GPU `index` copies from and to beside the host.
/// (libtorch's allocator for such memory rounds sizes up to powers of two.)
void* allocate_pinned(int index, size_t bytes);
/// Copies from and to the memory must have ended.
void free_pinned(int index, void* memory) noexcept;

/// From now on libtorch's allocator keeps its last 100,000 events on GPU `index` with their C++ stacks (some
/// microseconds each). When it runs out of memory it writes them and all allocations to `file`, before it
/// throws and so before anything is freed. A file that cannot be written is a warning. For one GPU, once in a
/// process.
///
/// The format is that of Python's torch.cuda.memory._dump_snapshot(), for
/// https://docs.pytorch.org/memory_viz. Functions have the names that libraries export; the environment
/// variable TORCH_SYMBOLIZE_MODE=addr2line adds lines where there is debug information, and takes minutes.
void record_cuda_memory_history(int index, const std::filesystem::path& file);
/// Writes that file now. Throws Error(kIo).
void write_cuda_memory_snapshot(const std::filesystem::path& file);

}  // namespace fsdp::util
