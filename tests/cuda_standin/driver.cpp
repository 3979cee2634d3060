// libcuda, which libtorch loads for its just-in-time compiler. All but these are generated, and are
// violations.

#include <cuda.h>

#include <cstdint>

#include "standin.h"

extern "C" {
CUresult cuInit(unsigned) { return CUDA_SUCCESS; }

CUresult cuDeviceGet(CUdevice* device, int index) {
  *device = index;
  return CUDA_SUCCESS;
}

/// The calling thread's: that of its current device, once the runtime has started it.
CUresult cuCtxGetCurrent(CUcontext* context) {
  int device = 0;
  cudaGetDevice(&device);
  *context = standin_has_context(device) != 0 ? reinterpret_cast<CUcontext>(static_cast<intptr_t>(device) + 1)
                                              : nullptr;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  if (flags != nullptr) *flags = 0;
  *active = standin_has_context(device);
  return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult, const char** text) {
  *text = "error of the stand-in";
  return CUDA_SUCCESS;
}
}
