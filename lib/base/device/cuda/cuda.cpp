#include "base/device/cuda.h"

#include <ATen/Context.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>
#include <torch/csrc/cuda/memory_snapshot.h>

#include <cstdlib>
#include <exception>

#include "base/util/error.h"
#include "base/util/file.h"
#include "base/util/log.h"

namespace fsdp::util {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

std::string version_text(int version) {
  return concat(version / 1000, ".", version % 1000 / 10);
}  // 13000: "13.0"

CudaStatus query_status() {
  CudaStatus status;
  // CUDA is asked directly, because libtorch logs a warning of several lines.
  const cudaError_t error = cudaGetDeviceCount(&status.devices);
  if (error == cudaSuccess && status.devices > 0) return status;
  (void)cudaGetLastError();  // clears the error, which a later call of libtorch would otherwise report
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

c10::DeviceIndex checked(int index) {
  const std::string who = concat("CUDA device ", index);
  require_cuda(who);
  const int devices = cuda_status().devices;
  if (index < 0 || index >= devices) {
    fail(ErrorKind::kUsage, who, ": expected a GPU for each process of this host; found ", devices,
         "; start no more processes per host than it has GPUs (fsdp-launch --nproc-per-node auto)");
  }
  return static_cast<c10::DeviceIndex>(index);
}

/// Initializes the GPU, before which libtorch has no statistics of it.
c10::DeviceIndex prepared(int index) {
  const c10::DeviceIndex device = checked(index);
  at::globalContext().lazyInitDevice(at::kCUDA);
  return device;
}

}  // namespace

bool built_with_cuda() { return true; }

const CudaStatus& cuda_status() {
  static const CudaStatus status = query_status();
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

int64_t cuda_bytes_in_use(int index) {
  const c10::cuda::CUDAGuard on_device(prepared(index));
  size_t free_bytes = 0, all_bytes = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free_bytes, &all_bytes));
  return static_cast<int64_t>(all_bytes - free_bytes);
}

void reset_cuda_peak_memory(int index) { allocator::resetPeakStats(prepared(index)); }

// Sets the device, because a thread without a current device would initialize the first one.
void* allocate_pinned(int index, size_t bytes) {
  const c10::cuda::CUDAGuard on_device(prepared(index));
  void* memory = nullptr;
  const cudaError_t error = cudaHostAlloc(&memory, bytes, cudaHostAllocDefault);
  if (error == cudaSuccess) return memory;
  (void)cudaGetLastError();
  fail(ErrorKind::kUnexpected, "pinned memory: expected ", bytes, " bytes of the host; found that CUDA ",
       "refuses them (", cudaGetErrorString(error),
       "); raise the limit of the container or of ulimit -l, or offload less");
}

void free_pinned(int index, void* memory) noexcept {
  const c10::cuda::CUDAGuard on_device(static_cast<c10::DeviceIndex>(index));
  if (cudaFreeHost(memory) != cudaSuccess) (void)cudaGetLastError();
}

void record_cuda_memory_history(int index, const std::filesystem::path& file) {
  prepared(index);
  // With the default mode, one process for each library, one after another, resolves the names of functions.
  ::setenv("TORCH_SYMBOLIZE_MODE", "dladdr", /*overwrite=*/0);
  constexpr size_t kEvents = 100'000;
  const std::string all = "all";  // a literal would select the overload for bool
  torch::cuda::_record_memory_history(/*enabled=*/all, /*context=*/all, /*stacks=*/all, kEvents);
  allocator::attachOutOfMemoryObserver([index, file](int64_t device, size_t, size_t, size_t) {
    if (device != index) return;
    try {
      write_cuda_memory_snapshot(file);
    } catch (const std::exception& error) {  // must not replace the error that is about to be thrown
      log_warning(concat("cannot write a snapshot of the GPU's exhausted memory: ", error.what()));
    }
  });
}

void write_cuda_memory_snapshot(const std::filesystem::path& file) {
  require_cuda("a snapshot of GPU memory");
  std::error_code ignored;  // writing the file reports it
  if (file.has_parent_path()) std::filesystem::create_directories(file.parent_path(), ignored);
  write_file_atomically(file, torch::cuda::_memory_snapshot_pickled());
}

}  // namespace fsdp::util
