#include "device.h"

#include <cuda.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "memory.h"
#include "report.h"
#include "settings.h"
#include "stream.h"

namespace standin {
namespace {

thread_local int current = 0;
thread_local cudaError_t last_error = cudaSuccess;
thread_local bool in_host_function = false;

/// An H100, but for its compute capability.
void describe(cudaDeviceProp& properties, int index) {
  std::memset(&properties, 0, sizeof(properties));
  std::snprintf(properties.name, sizeof(properties.name), "Stand-in GPU");
  properties.uuid.bytes[0] = static_cast<char>(index + 1);
  properties.totalGlobalMem = settings().memory_bytes;
  properties.major = settings().capability / 10;
  properties.minor = settings().capability % 10;
  properties.pciBusID = 3 + index;
  properties.multiProcessorCount = 132;
  properties.maxThreadsPerMultiProcessor = 2048;
  properties.maxBlocksPerMultiProcessor = 32;
  properties.warpSize = 32;
  properties.maxThreadsPerBlock = 1024;
  properties.maxThreadsDim[0] = properties.maxThreadsDim[1] = 1024;
  properties.maxThreadsDim[2] = 64;
  properties.maxGridSize[0] = 2147483647;
  properties.maxGridSize[1] = properties.maxGridSize[2] = 65535;
  properties.regsPerBlock = properties.regsPerMultiprocessor = 65536;
  properties.sharedMemPerBlock = 49152;
  properties.sharedMemPerBlockOptin = 232448;
  properties.sharedMemPerMultiprocessor = 233472;
  properties.reservedSharedMemPerBlock = 1024;
  properties.totalConstMem = 65536;
  properties.l2CacheSize = 50 << 20;
  properties.memoryBusWidth = 5120;
  properties.memPitch = 1U << 31;
  properties.textureAlignment = 512;
  properties.texturePitchAlignment = 32;
  properties.asyncEngineCount = 3;
  properties.canMapHostMemory = properties.concurrentKernels = properties.unifiedAddressing = 1;
  properties.streamPrioritiesSupported = properties.managedMemory = properties.cooperativeLaunch = 1;
  properties.hostRegisterSupported = properties.memoryPoolsSupported = properties.clusterLaunch = 1;
  properties.computePreemptionSupported = properties.canUseHostPointerForRegisteredMem = 1;
}

/// When the first context starts, libtorch is there, whose kernels the library replaces.
void load_numbers() {
  const std::string& library = settings().numbers;
  if (library.empty()) return;
  if (!settings().late && ::dlopen(library.c_str(), RTLD_NOW) != nullptr) return;
  std::fprintf(stderr, "stand-in: STANDIN_NUMBERS: %s\n",
               settings().late ? "not with late streams (STANDIN_LATE)" : ::dlerror());
  std::abort();
}

}  // namespace

Device& device(int index) {
  static auto* devices = new Device[kMaxDevices];
  return devices[index];
}

int current_device() { return current; }

bool any_context() {
  for (int i = 0; i < kMaxDevices; ++i) {
    if (device(i).has_context) return true;
  }
  return false;
}

cudaError_t failed(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

void enter(const char* function) {
  if (in_host_function) violation(std::string(function) + " is called in a host function of a stream");
  Device& device = standin::device(current);
  if (device.has_context.load(std::memory_order_acquire)) return;
  Lock lock(mutex());
  if (device.has_context) return;
  const bool second = any_context();
  map_memory(device);
  device.default_stream = new CUstream_st{.device = current, .flags = 0, .priority = 0};
  device.has_context.store(true, std::memory_order_release);
  STANDIN_COUNT("contexts");
  if (!second) load_numbers();
  if (second) {
    violation("a second context of this process, on device " + std::to_string(current) + ", by " + function);
  }
}

InHostFunction::InHostFunction() { in_host_function = true; }
InHostFunction::~InHostFunction() { in_host_function = false; }

}  // namespace standin

using namespace standin;

extern "C" int standin_has_context(int index) { return standin::device(index).has_context; }

STANDIN_API cudaGetDeviceCount(int* count) {
  *count = settings().devices;
  return *count > 0 ? cudaSuccess : failed(cudaErrorNoDevice);
}

STANDIN_API cudaSetDevice(int index) {
  STANDIN_COUNT("cudaSetDevice");
  if (index < 0 || index >= settings().devices) return failed(cudaErrorInvalidDevice);
  current = index;
  enter("cudaSetDevice");
  return cudaSuccess;
}

STANDIN_API cudaGetDevice(int* index) {
  STANDIN_COUNT("cudaGetDevice");
  *index = current;
  return cudaSuccess;
}

STANDIN_API cudaGetDeviceProperties(cudaDeviceProp* properties, int index) {
  if (index < 0 || index >= settings().devices) return failed(cudaErrorInvalidDevice);
  describe(*properties, index);
  return cudaSuccess;
}

STANDIN_API cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int index) {
  cudaDeviceProp properties;
  if (cudaError_t error = cudaGetDeviceProperties(&properties, index)) return error;
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      *value = properties.major;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = properties.minor;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = properties.multiProcessorCount;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(properties.sharedMemPerBlockOptin);
      break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = static_cast<int>(properties.sharedMemPerBlock);
      break;
    case cudaDevAttrMaxThreadsPerBlock:
      *value = properties.maxThreadsPerBlock;
      break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *value = properties.maxThreadsPerMultiProcessor;
      break;
    case cudaDevAttrMaxRegistersPerBlock:
      *value = properties.regsPerBlock;
      break;
    case cudaDevAttrWarpSize:
      *value = properties.warpSize;
      break;
    case cudaDevAttrL2CacheSize:
      *value = properties.l2CacheSize;
      break;
    case cudaDevAttrPciBusId:
      *value = properties.pciBusID;
      break;
    case cudaDevAttrMaxGridDimX:
      *value = properties.maxGridSize[0];
      break;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ:
      *value = properties.maxGridSize[1];
      break;
    case cudaDevAttrCooperativeLaunch:
      *value = properties.cooperativeLaunch;
      break;
    default:
      *value = 0;
  }
  return cudaSuccess;
}

STANDIN_API cudaDeviceGetPCIBusId(char* text, int size, int index) {
  if (index < 0 || index >= settings().devices) return failed(cudaErrorInvalidDevice);
  std::snprintf(text, static_cast<size_t>(size), "0000:%02x:00.0", 3 + index);
  return cudaSuccess;
}

STANDIN_API cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return cudaSuccess;
}
STANDIN_API cudaDeviceEnablePeerAccess(int, unsigned) { return failed(cudaErrorPeerAccessUnsupported); }

STANDIN_API cudaDriverGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
STANDIN_API cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }

STANDIN_API cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  STANDIN_ENTER(cudaMemGetInfo);
  Lock lock(mutex());
  *total_bytes = settings().memory_bytes;
  *free_bytes = settings().memory_bytes - standin::device(current).used;
  return cudaSuccess;
}

STANDIN_API cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
STANDIN_API cudaPeekAtLastError() { return last_error; }

extern "C" const char* CUDARTAPI cudaGetErrorName(cudaError_t error) {
  static thread_local char name[32];
  std::snprintf(name, sizeof(name), "cudaError%d", static_cast<int>(error));
  return name;
}

/// In the words of the real runtime where a program of ours may look for them.
extern "C" const char* CUDARTAPI cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorNotReady:
      return "device not ready";
    case cudaErrorInvalidResourceHandle:
      return "invalid resource handle";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated:
      return "operation failed due to a previous error during capture";
    default:
      return cudaGetErrorName(error);
  }
}

STANDIN_API cudaProfilerStart() { return cudaSuccess; }
STANDIN_API cudaProfilerStop() { return cudaSuccess; }

// --- Functions of the driver that libtorch asks the runtime for.

namespace {

CUresult error_string(CUresult, const char** text) {
  *text = "error of the stand-in";
  return CUDA_SUCCESS;
}

CUresult primary_context_state(CUdevice index, unsigned* flags, int* active) {
  if (flags != nullptr) *flags = 0;
  *active = index < settings().devices && standin::device(index).has_context;
  return CUDA_SUCCESS;
}

CUresult current_context(CUcontext* context) {
  Device& device = standin::device(current);
  *context = device.has_context ? reinterpret_cast<CUcontext>(&device) : nullptr;
  return CUDA_SUCCESS;
}

/// The stand-in's driver logs nothing.
CUresult register_log(CUlogsCallback, void*, CUlogsCallbackHandle* callback) {
  *callback = nullptr;
  return CUDA_SUCCESS;
}

CUresult unregister_log(CUlogsCallbackHandle) { return CUDA_SUCCESS; }

CUresult absent() {
  violation("a function of the driver that the stand-in does not have");
  return CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace

STANDIN_API cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  if (result != nullptr) *result = cudaDriverEntryPointSuccess;
  const std::string wanted = name;
  *function = wanted == "cuGetErrorString"             ? reinterpret_cast<void*>(error_string)
              : wanted == "cuDevicePrimaryCtxGetState" ? reinterpret_cast<void*>(primary_context_state)
              : wanted == "cuCtxGetCurrent"            ? reinterpret_cast<void*>(current_context)
              : wanted == "cuLogsRegisterCallback"     ? reinterpret_cast<void*>(register_log)
              : wanted == "cuLogsUnregisterCallback"   ? reinterpret_cast<void*>(unregister_log)
                                                       : reinterpret_cast<void*>(absent);
  return cudaSuccess;
}
