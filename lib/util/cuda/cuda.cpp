// util/cuda.h over the CUDA runtime and libtorch.

#include "util/cuda.h"

#include <ATen/Context.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>

#include <cstdlib>

#include "util/error.h"

namespace fsdp::util {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

/// 13000 is 13.0.
std::string version_text(int version) { return concat(version / 1000, ".", version % 1000 / 10); }

CudaStatus ask() {
  CudaStatus status;
  // The runtime itself is asked, because libtorch's own count of devices logs a warning of several lines.
  const cudaError_t error = cudaGetDeviceCount(&status.devices);
  if (error == cudaSuccess && status.devices > 0) return status;
  (void)cudaGetLastError();  // else a later call of libtorch would find it
  status.devices = 0;
  int driver = 0, runtime = 0;
  (void)cudaDriverGetVersion(&driver);
  (void)cudaRuntimeGetVersion(&runtime);
  if (driver == 0 || error == cudaErrorStubLibrary) {
    status.obstacle = "no NVIDIA driver (libcuda.so.1)";
    status.remedy = "install the driver, or give the container the GPUs, as docker run --gpus all does";
  } else if (error == cudaErrorInsufficientDriver) {
    status.obstacle =
        concat("an NVIDIA driver for CUDA ", version_text(driver), ", which is too old for CUDA ",
               version_text(runtime), ", with which the program was built");
    status.remedy = "update the driver";
  } else if (error == cudaErrorNoDevice || error == cudaSuccess) {
    const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
    status.obstacle = "an NVIDIA driver that shows no GPU";
    status.remedy = visible != nullptr ? concat("correct CUDA_VISIBLE_DEVICES, which is \"", visible, "\"")
                                       : "see what nvidia-smi shows";
  } else {
    status.obstacle = concat("that CUDA cannot be started: ", cudaGetErrorString(error));
    status.remedy = "see what nvidia-smi shows";
  }
  return status;
}

/// Throws for a GPU that is not there.
c10::DeviceIndex checked(int index) {
  const std::string who = concat("CUDA device ", index);
  require_cuda(who);
  const int devices = cuda_status().devices;
  if (index < 0 || index >= devices) {
    fail(ErrorKind::kUsage, who, ": expected a GPU for each process of this host; found ", devices,
         "; start no more processes a host than it has GPUs (fsdp-launch --nproc-per-node auto)");
  }
  return static_cast<c10::DeviceIndex>(index);
}

/// Before its first tensor libtorch has no figures of a GPU.
c10::DeviceIndex prepared(int index) {
  const c10::DeviceIndex device = checked(index);
  at::globalContext().lazyInitDevice(at::kCUDA);
  return device;
}

}  // namespace

bool built_with_cuda() { return true; }

const CudaStatus& cuda_status() {
  static const CudaStatus status = ask();
  return status;
}

void require_cuda(const std::string& who) {
  const CudaStatus& status = cuda_status();
  if (status.devices > 0) return;
  fail(ErrorKind::kUsage, who, ": expected a CUDA device; found ", status.obstacle, "; ", status.remedy);
}

void set_cuda_device(int index) { c10::cuda::set_device(prepared(index)); }

CudaDevice cuda_device(int index) {
  const c10::DeviceIndex device = checked(index);
  cudaDeviceProp properties{};
  C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  char bus_id[32] = "";
  C10_CUDA_CHECK(cudaDeviceGetPCIBusId(bus_id, sizeof(bus_id), device));
  return {.name = properties.name,
          .capability = concat(properties.major, ".", properties.minor),
          .bus_id = bus_id,
          .memory_bytes = static_cast<int64_t>(properties.totalGlobalMem)};
}

CudaMemory cuda_memory(int index) {
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto stats = allocator::getDeviceStats(prepared(index));
  return {.allocated_bytes = stats.allocated_bytes[kAll].current,
          .peak_allocated_bytes = stats.allocated_bytes[kAll].peak,
          .reserved_bytes = stats.reserved_bytes[kAll].current,
          .peak_reserved_bytes = stats.reserved_bytes[kAll].peak,
          .retries = stats.num_alloc_retries};
}

void reset_cuda_peak_memory(int index) { allocator::resetPeakStats(prepared(index)); }

}  // namespace fsdp::util
