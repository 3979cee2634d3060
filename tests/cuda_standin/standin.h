#pragma once

// What the stand-ins of the other libraries (cuBLAS, cuDNN, NCCL, the driver) ask of that of the CUDA
// runtime, which holds all of the state. README.md describes the whole.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>

namespace standin {

/// Memory that an operation on a stream reads or writes.
struct Range {
  const void* data = nullptr;
  size_t bytes = 0;
  bool writes = false;
};

/// Name of a product by STANDIN_FASTEST_ALGORITHM.
inline constexpr const char* kFastestProduct = "cublasLtMatmul by the fastest algorithm";

/// All addresses of a device.
struct DeviceMemory {
  const char* seen;   ///< the first as the stand-in sees it
  const char* given;  ///< the same as the program gets it
  size_t bytes;
};

}  // namespace standin

extern "C" {
/// Adds to the count `name` of the report.
void standin_count(const char* name, long more = 1);

/// Adds a line to the list of launches (STANDIN_LAUNCHES).
void standin_launched(const char* what);

/// Reports that the program has done what CUDA forbids, or what the stand-in does not have.
void standin_violation(const char* what);

/// How many violations there were.
long standin_violations();

/// The host's address of device memory; null, and a violation, unless `bytes` from there are in one
/// allocation.
void* standin_view(const void* pointer, size_t bytes, const char* who);

/// Whether `pointer` is an address of a device.
int standin_is_of_device(const void* pointer);

standin::DeviceMemory standin_current_memory();

/// Returns what computes a kernel of that name, launched with those arguments; nothing if it is not known.
using KernelComputation = std::function<void()>(const char* name, dim3 grid, void** arguments);

/// From now on kernels and products compute, and one that does not is a violation (STANDIN_NUMBERS).
void standin_compute_kernels(KernelComputation* computation);
int standin_computes();

/// Puts `work` on `stream` as a kernel that touches `count` ranges. Returns nonzero if CUDA would refuse
/// it.
int standin_submit(const char* name, cudaStream_t stream, const standin::Range* ranges, int count,
                   std::function<void()> work);

/// What runs on a stream now has touched these ranges.
void standin_accessed(const char* who, const standin::Range* ranges, int count);

/// The value N of "do=`what`:N" in STANDIN_FAULT if the fault is this process's; -1 otherwise.
long standin_fault(const char* what);

int standin_has_context(int device);

/// Writes the report; the process is about to end.
void standin_finish();
}
