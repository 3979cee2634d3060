// Kernels: the launch is checked and counted. It does nothing, unless numbers are computed
// (numbers_kernels.cpp).

#include <cstring>
#include <string>
#include <unordered_map>
#include <utility>

#include "device.h"
#include "report.h"
#include "settings.h"
#include "standin.h"
#include "stream.h"

namespace standin {
namespace {

constexpr size_t kMostSharedMemory = 232448;

/// By the address of the host's stub.
std::unordered_map<const void*, std::string>& names() {
  static auto* names = new std::unordered_map<const void*, std::string>;
  return *names;
}

std::string name_of(const void* function) {
  Lock lock(mutex());
  const auto name = names().find(function);
  return name != names().end() ? name->second : "?";
}

std::string text(const dim3& size) {
  return std::to_string(size.x) + "x" + std::to_string(size.y) + "x" + std::to_string(size.z);
}

struct Launch {
  dim3 grid, block;
  size_t shared_memory = 0;
  cudaStream_t stream = nullptr;

  bool fits() const {
    const auto threads = static_cast<size_t>(block.x) * block.y * block.z;
    return grid.x > 0 && grid.y > 0 && grid.z > 0 && threads > 0 && threads <= 1024 && block.z <= 64 &&
           grid.x <= 2147483647U && grid.y <= 65535 && grid.z <= 65535;
  }
};

void do_nothing() { take_time(settings().kernel_us); }

KernelComputation* computation = nullptr;

/// What a kernel or product does, by its name.
std::function<void()> checked(const std::string& name, std::function<void()> work) {
  if (!work && computation != nullptr) violation("not computed: " + name);
  if (!work) work = do_nothing;
  if (settings().fastest_algorithm < 0 || name == kFastestProduct) return work;
  return [work = std::move(work)] {
    work();
    ++added_milliseconds;
  };
}

cudaError_t launch(const char* who, const void* function, const Launch& launch, void** arguments) {
  STANDIN_COUNT("kernels");
  if (settings().kernel_names) count_of("kernel " + name_of(function)).fetch_add(1);
  if (!settings().launches.empty()) standin_launched(("kernel " + name_of(function)).c_str());
  if (!launch.fits()) {
    violation("kernel " + name_of(function) + ": grid " + text(launch.grid) + ", block " +
              text(launch.block) + " (cudaErrorInvalidConfiguration)");
    return failed(cudaErrorInvalidConfiguration);
  }
  if (launch.shared_memory > kMostSharedMemory) {
    violation("kernel " + name_of(function) + ": too much shared memory");
    return failed(cudaErrorInvalidValue);
  }
  if (computation == nullptr) return submit(who, launch.stream, Kind::kKernel, do_nothing);
  const std::string name = name_of(function);
  return submit(who, launch.stream, Kind::kKernel,
                checked(name, computation(name.c_str(), launch.grid, arguments)));
}

thread_local Launch configured;

}  // namespace
}  // namespace standin

using namespace standin;

extern "C" int standin_submit(const char* name, cudaStream_t stream, const Range* ranges, int count,
                              std::function<void()> work) {
  count_of(name).fetch_add(1);
  for (int i = 0; i < count; ++i) access(name, find_stream(stream), ranges[i]);
  return submit(name, stream, Kind::kKernel, checked(name, std::move(work)));
}

extern "C" void standin_accessed(const char* who, const Range* ranges, int count) {
  for (int i = 0; i < count; ++i) access(who, running_stream(), ranges[i]);
}

extern "C" void standin_compute_kernels(KernelComputation* made) { computation = made; }
extern "C" int standin_computes() { return computation != nullptr; }

STANDIN_API cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments,
                             size_t shared_memory, cudaStream_t stream) {
  return launch("cudaLaunchKernel", function, {grid, block, shared_memory, stream}, arguments);
}

STANDIN_API cudaLaunchCooperativeKernel(const void* function, dim3 grid, dim3 block, void** arguments,
                                        size_t shared_memory, cudaStream_t stream) {
  return launch("cudaLaunchCooperativeKernel", function, {grid, block, shared_memory, stream}, arguments);
}

STANDIN_API cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void** arguments) {
  return launch("cudaLaunchKernelExC", function,
                {config->gridDim, config->blockDim, config->dynamicSmemBytes, config->stream}, arguments);
}

STANDIN_API __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}

STANDIN_API __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                               size_t shared_memory, cudaStream_t stream) {
  return launch("cudaLaunchKernel", kernel, {grid, block, shared_memory, stream}, arguments);
}

extern "C" unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_memory,
                                                cudaStream_t stream) {
  configured = {grid, block, shared_memory, stream};
  return 0;
}

STANDIN_API __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_memory, void* stream) {
  *grid = configured.grid;
  *block = configured.block;
  *shared_memory = configured.shared_memory;
  *static_cast<cudaStream_t*>(stream) = configured.stream;
  return cudaSuccess;
}

extern "C" void** __cudaRegisterFatBinary(void*) {
  static void* handle;
  return &handle;
}
extern "C" void __cudaRegisterFatBinaryEnd(void**) {}
extern "C" void __cudaUnregisterFatBinary(void**) {}
extern "C" char __cudaInitModule(void**) { return 1; }
extern "C" void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
extern "C" void __cudaRegisterFunction(void**, const char* function, char*, const char* name, int, uint3*,
                                       uint3*, dim3*, dim3*, int*) {
  names()[function] = name;  // while libraries are loaded, in one thread
}

/// As of the machine code in libtorch that suits the device.
STANDIN_API cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  STANDIN_COUNT("cudaFuncGetAttributes");
  std::memset(attributes, 0, sizeof(*attributes));
  int version = 75;
  for (const int built : {80, 86, 90, 100, 120}) {
    if (built <= settings().capability) version = built;
  }
  attributes->ptxVersion = attributes->binaryVersion = version;
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  attributes->maxDynamicSharedSizeBytes = kMostSharedMemory;
  return cudaSuccess;
}

STANDIN_API cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) {
  STANDIN_COUNT("cudaFuncSetAttribute");
  return cudaSuccess;
}

STANDIN_API cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int, size_t,
                                                                   unsigned) {
  *blocks = 2;
  return cudaSuccess;
}
STANDIN_API cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int, size_t) {
  *blocks = 2;
  return cudaSuccess;
}
