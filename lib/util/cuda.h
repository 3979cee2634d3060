#pragma once

// What this program can do with NVIDIA GPUs on this machine, and the figures of their memory. The same
// functions are in both flavours of the build (cuda/cuda.cpp, cuda_absent.cpp), so that nothing else needs to
// tell them apart.
//
// GPUs are numbered from 0 among those that CUDA_VISIBLE_DEVICES leaves. The first call loads the driver: a
// process that has made one does not fork.

#include <cstdint>
#include <filesystem>
#include <string>

namespace fsdp::util {

struct CudaStatus {
  int devices = 0;       ///< GPUs that the program can use
  std::string obstacle;  ///< why there is none, as in "no NVIDIA driver"; empty where there are some
  std::string remedy;    ///< what to do about it
};

/// Whether this is the CUDA flavour of the build.
bool built_with_cuda();

/// Never throws; the first answer stays.
const CudaStatus& cuda_status();

/// Throws Error(kUsage) with obstacle and remedy where there is no GPU. `who` asks for one, as in
/// "training.device".
void require_cuda(const std::string& who);

/// Makes GPU `index` the calling thread's, and prepares it for tensors. Throws Error(kUsage) where there is
/// no such.
void set_cuda_device(int index);

struct CudaDevice {
  std::string name;        ///< "NVIDIA H100 80GB HBM3"
  std::string capability;  ///< "9.0"
  std::string bus_id;      ///< its place in the host, "0000:1b:00.0"
  int64_t memory_bytes = 0;
};

/// Throws Error(kUsage) where there is no such GPU, as do the functions below.
CudaDevice cuda_device(int index);

/// Of this process, by the caching allocator of libtorch.
struct CudaMemory {
  int64_t allocated_bytes = 0, peak_allocated_bytes = 0;  ///< of tensors
  int64_t reserved_bytes = 0, peak_reserved_bytes = 0;    ///< taken from the GPU
  int64_t retries = 0;  ///< allocations that had to give cached memory back to the GPU first
};

/// Peaks are those since the start or reset_cuda_peak_memory().
CudaMemory cuda_memory(int index);
void reset_cuda_peak_memory(int index);

/// From now on libtorch's allocator remembers the last 100,000 things that it did on GPU `index`, with the
/// C++ functions that asked for them (some microseconds each), and writes them to `file`, with all memory
/// that is in use at that moment, whenever it has no room for a tensor. It does so before the exception is
/// thrown, and so before anything is given back. A file that cannot be written is a warning. For one GPU and
/// once in a process.
///
/// The file is what torch.cuda.memory._dump_snapshot() writes in Python: https://docs.pytorch.org/memory_viz
/// shows it. Names of functions are those that libraries export; the environment variable
/// TORCH_SYMBOLIZE_MODE=addr2line gives lines too where there is debug information, and takes minutes.
void record_cuda_memory_history(int index, const std::filesystem::path& file);
/// Writes the same now. Throws Error(kIo) where that cannot be.
void write_cuda_memory_snapshot(const std::filesystem::path& file);

}  // namespace fsdp::util
