#pragma once

// Devices, their contexts, and what the runtime keeps for each thread.

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <map>

namespace standin {

constexpr int kMaxDevices = 16;

struct Device {
  std::atomic<bool> has_context{false};
  char* view = nullptr;    ///< the addresses that the program gets, which the host may not touch
  char* shadow = nullptr;  ///< the same memory as the stand-in sees it
  size_t next = 0;         ///< addresses are given out once, so that a use after cudaFree() is seen
  size_t used = 0;
  std::map<char*, size_t> live;
  CUstream_st* default_stream = nullptr;
};

Device& device(int index);
int current_device();
bool any_context();

/// Sets what cudaGetLastError() returns.
cudaError_t failed(cudaError_t error);

/// A call of the runtime begins. The first on a device starts its context, which takes half a gigabyte of a
/// real GPU; one on a second device of a process that trains on one is a violation.
void enter(const char* function);

/// What the calling thread runs is a host function of a stream, which must not call CUDA.
class InHostFunction {
 public:
  InHostFunction();
  ~InHostFunction();
};

}  // namespace standin

#define STANDIN_API extern "C" cudaError_t CUDARTAPI
#define STANDIN_ENTER(function) \
  STANDIN_COUNT(#function);     \
  standin::enter(#function)
