#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>
#include <unordered_map>

#include "capture.h"
#include "report.h"
#include "settings.h"
#include "standin.h"
#include "stream.h"

namespace standin {
namespace {

constexpr size_t kAddresses = size_t{1} << 38;    ///< of a device
constexpr size_t kGranularity = size_t{2} << 20;  ///< of cudaMalloc()

std::map<char*, size_t>& pinned() {
  static auto* pinned = new std::map<char*, size_t>;
  return *pinned;
}

size_t rounded(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

/// Whether STANDIN_FAULT refuses this allocation: the N-th of the process and all after it, or those above
/// N MiB.
bool is_refused(size_t bytes) {
  static const long refused_from = standin_fault("cuda_malloc"),
                    refused_above = standin_fault("cuda_malloc_mib");
  static long calls = 0;
  ++calls;
  return (refused_from >= 0 && calls >= refused_from) ||
         (refused_above >= 0 && bytes > static_cast<size_t>(refused_above) << 20);
}

}  // namespace

void map_memory(Device& device) {
  const int file = ::memfd_create("standin", 0);
  const auto map = [file](int protection) {
    void* memory = ::mmap(nullptr, kAddresses, protection, MAP_SHARED | MAP_NORESERVE, file, 0);
    if (memory == MAP_FAILED) {
      std::perror("stand-in: mmap");
      std::abort();
    }
    return static_cast<char*>(memory);
  };
  if (file < 0 || ::ftruncate(file, kAddresses) != 0) {
    std::perror("stand-in: memfd");
    std::abort();
  }
  device.shadow = map(PROT_READ | PROT_WRITE);
  device.view = map(PROT_NONE);
}

int device_of(const void* pointer) {
  const char* address = static_cast<const char*>(pointer);
  for (int i = 0; i < settings().devices; ++i) {
    const char* begin = device(i).view;
    if (begin != nullptr && address >= begin && address < begin + kAddresses) return i;
  }
  return -1;
}

bool is_pinned(const void* pointer, size_t bytes) {
  Lock lock(mutex());
  const char* begin = static_cast<const char*>(pointer);
  auto block = pinned().upper_bound(const_cast<char*>(begin));
  if (block == pinned().begin()) return false;
  --block;
  return begin + bytes <= block->first + block->second;
}

void* view(const void* pointer, size_t bytes, const char* who) {
  const int index = device_of(pointer);
  if (index < 0) {
    violation(std::string(who) + ": not memory of a device");
    return nullptr;
  }
  Lock lock(mutex());
  Device& device = standin::device(index);
  const char* begin = static_cast<const char*>(pointer);
  auto block = device.live.upper_bound(const_cast<char*>(begin));
  if (block == device.live.begin() || begin >= std::prev(block)->first + std::prev(block)->second) {
    violation(std::string(who) + ": memory that is not allocated");
    return nullptr;
  }
  --block;
  if (begin + bytes > block->first + block->second) {
    violation(std::string(who) + ": beyond the end of an allocation");
    return nullptr;
  }
  return device.shadow + (begin - device.view);
}

}  // namespace standin

using namespace standin;

extern "C" void* standin_view(const void* pointer, size_t bytes, const char* who) {
  return view(pointer, bytes, who);
}

extern "C" DeviceMemory standin_current_memory() {
  const Device& device = standin::device(current_device());
  return {device.shadow, device.view, kAddresses};
}

extern "C" int standin_is_of_device(const void* pointer) { return device_of(pointer) >= 0; }

STANDIN_API cudaMalloc(void** pointer, size_t bytes) {
  STANDIN_ENTER(cudaMalloc);
  if (cudaError_t error = refused_in_capture("cudaMalloc")) return error;
  Lock lock(mutex());
  Device& device = standin::device(current_device());
  const size_t size = rounded(bytes, kGranularity);
  *pointer = nullptr;
  if (is_refused(size) || device.used + size > settings().memory_bytes || device.next + size > kAddresses) {
    return failed(cudaErrorMemoryAllocation);
  }
  char* const memory = device.view + device.next;
  device.next += size;
  device.used += size;
  device.live[memory] = size;
  *pointer = memory;
  return cudaSuccess;
}

STANDIN_API cudaFree(void* pointer) {
  STANDIN_ENTER(cudaFree);
  if (pointer == nullptr) return cudaSuccess;
  if (cudaError_t error = refused_in_capture("cudaFree")) return error;
  const int index = device_of(pointer);
  if (index < 0) {
    violation("cudaFree of what is no device memory");
    return failed(cudaErrorInvalidValue);
  }
  wait_for_device(index);  // as the real one does
  Lock lock(mutex());
  Device& device = standin::device(index);
  const auto block = device.live.find(static_cast<char*>(pointer));
  if (block == device.live.end()) {
    violation("cudaFree of what is not allocated");
    return failed(cudaErrorInvalidValue);
  }
  ::madvise(device.shadow + (block->first - device.view), block->second, MADV_REMOVE);
  device.used -= block->second;
  device.live.erase(block);
  return cudaSuccess;
}

STANDIN_API cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t) { return cudaMalloc(pointer, bytes); }
STANDIN_API cudaFreeAsync(void* pointer, cudaStream_t) { return cudaFree(pointer); }

STANDIN_API cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
  STANDIN_ENTER(cudaHostAlloc);
  if (cudaError_t error = refused_in_capture("cudaHostAlloc")) return error;
  *pointer = std::aligned_alloc(4096, rounded(bytes, 4096));
  if (*pointer == nullptr) return failed(cudaErrorMemoryAllocation);
  static std::atomic<long>& total = count_of("pinned bytes");
  total += static_cast<long>(bytes);
  Lock lock(mutex());
  pinned()[static_cast<char*>(*pointer)] = bytes;
  return cudaSuccess;
}

STANDIN_API cudaMallocHost(void** pointer, size_t bytes) { return cudaHostAlloc(pointer, bytes, 0); }

STANDIN_API cudaFreeHost(void* pointer) {
  STANDIN_ENTER(cudaFreeHost);
  if (cudaError_t error = refused_in_capture("cudaFreeHost")) return error;
  Lock lock(mutex());
  if (pinned().erase(static_cast<char*>(pointer)) == 0) {
    violation("cudaFreeHost of what is not pinned");
    return failed(cudaErrorInvalidValue);
  }
  std::free(pointer);
  return cudaSuccess;
}

STANDIN_API cudaHostRegister(void* pointer, size_t bytes, unsigned) {
  STANDIN_ENTER(cudaHostRegister);
  if (cudaError_t error = refused_in_capture("cudaHostRegister")) return error;
  Lock lock(mutex());
  if (is_pinned(pointer, 1)) {
    violation("cudaHostRegister of what is registered");
    return failed(cudaErrorHostMemoryAlreadyRegistered);
  }
  pinned()[static_cast<char*>(pointer)] = bytes;
  return cudaSuccess;
}

STANDIN_API cudaHostUnregister(void* pointer) {
  STANDIN_ENTER(cudaHostUnregister);
  if (cudaError_t error = refused_in_capture("cudaHostUnregister")) return error;
  Lock lock(mutex());
  if (pinned().erase(static_cast<char*>(pointer)) > 0) return cudaSuccess;
  violation("cudaHostUnregister of what is not registered");
  return failed(cudaErrorHostMemoryNotRegistered);
}

STANDIN_API cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  STANDIN_COUNT("cudaPointerGetAttributes");
  std::memset(attributes, 0, sizeof(*attributes));
  void* const address = const_cast<void*>(pointer);
  if (const int index = device_of(pointer); index >= 0) {
    attributes->type = cudaMemoryTypeDevice;
    attributes->device = index;
    attributes->devicePointer = address;
  } else if (is_pinned(pointer, 1)) {
    attributes->type = cudaMemoryTypeHost;
    attributes->devicePointer = attributes->hostPointer = address;
  } else {
    attributes->type = cudaMemoryTypeUnregistered;
    attributes->device = -1;
  }
  return cudaSuccess;
}

STANDIN_API cudaGetSymbolAddress(void** pointer, const void* symbol) {
  STANDIN_ENTER(cudaGetSymbolAddress);
  constexpr size_t kSymbolBytes = 1 << 16;  // the size of a symbol is not known here
  static auto* addresses = new std::unordered_map<const void*, void*>;
  Lock lock(mutex());
  void*& address = (*addresses)[symbol];
  if (address == nullptr) cudaMalloc(&address, kSymbolBytes);
  *pointer = address;
  return cudaSuccess;
}

// --- Pools and memory of other processes, which nothing here uses.

STANDIN_API cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int index) {
  *pool = reinterpret_cast<cudaMemPool_t>(&standin::device(index));
  return cudaSuccess;
}
STANDIN_API cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr, void* value) {
  std::memset(value, 0, sizeof(uint64_t));
  return cudaSuccess;
}
STANDIN_API cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }
STANDIN_API cudaMemPoolSetAccess(cudaMemPool_t, const cudaMemAccessDesc*, size_t) { return cudaSuccess; }
STANDIN_API cudaMemPoolTrimTo(cudaMemPool_t, size_t) { return cudaSuccess; }
STANDIN_API cudaIpcCloseMemHandle(void*) { return failed(cudaErrorNotSupported); }
STANDIN_API cudaIpcGetEventHandle(cudaIpcEventHandle_t*, cudaEvent_t) {
  return failed(cudaErrorNotSupported);
}
STANDIN_API cudaIpcGetMemHandle(cudaIpcMemHandle_t*, void*) { return failed(cudaErrorNotSupported); }
STANDIN_API cudaIpcOpenEventHandle(cudaEvent_t*, cudaIpcEventHandle_t) {
  return failed(cudaErrorNotSupported);
}
STANDIN_API cudaIpcOpenMemHandle(void**, cudaIpcMemHandle_t, unsigned) {
  return failed(cudaErrorNotSupported);
}
