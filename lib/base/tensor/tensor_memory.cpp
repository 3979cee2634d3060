#include "base/tensor/tensor_memory.h"

#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <cstddef>
#include <new>
#include <utility>

#include "base/util/error.h"

namespace fsdp::util {
namespace {

/// Higher than the priority of any allocator that libtorch sets.
constexpr uint8_t kCounterPriority = 255;

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return inner->allocate(0);
    c10::DataPtr memory = inner->allocate(kHeaderBytes + bytes);
    auto* first = static_cast<std::byte*>(memory.get());
    new (first) Header{std::move(memory), static_cast<int64_t>(bytes), generation.load()};
    const int64_t now = live += static_cast<int64_t>(bytes);
    for (int64_t most = peak; now > most && !peak.compare_exchange_weak(most, now);) {
    }
    void* data = first + kHeaderBytes;
    return {data, data, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* target, const void* source, std::size_t bytes) const override {
    default_copy_data(target, source, bytes);
  }

  c10::Allocator* inner = nullptr;
  /// Number of the current TensorMemory, which does not count older memory.
  std::atomic<uint64_t> generation = 0;
  std::atomic<int64_t> live = 0, peak = 0;

 private:
  /// Header before a tensor's bytes: kernels such as oneDNN's free scratch memory by its pointer alone.
  struct Header {
    c10::DataPtr memory;
    int64_t bytes;
    uint64_t generation;
  };
  static constexpr size_t kHeaderBytes = 64;  ///< keeps libtorch's alignment of tensors
  static_assert(sizeof(Header) <= kHeaderBytes);

  static void release(void* data);
};

/// Never destroyed: tensors may outlive every TensorMemory.
CountingAllocator& counter() {
  static auto* allocator = new CountingAllocator;
  return *allocator;
}

void CountingAllocator::release(void* data) {
  if (data == nullptr) return;
  auto* header = reinterpret_cast<Header*>(static_cast<std::byte*>(data) - kHeaderBytes);
  if (header->generation == counter().generation) counter().live -= header->bytes;
  c10::DataPtr memory = std::move(header->memory);  // freed last: it contains the header
  header->~Header();
}

}  // namespace

TensorMemory::TensorMemory() {
  FSDP_CHECK(counter().inner == nullptr, "one TensorMemory at a time");
  ++counter().generation;
  counter().live = 0;
  counter().peak = 0;
  counter().inner = c10::GetCPUAllocator();
  c10::SetCPUAllocator(&counter(), kCounterPriority);
}

TensorMemory::~TensorMemory() {
  c10::SetCPUAllocator(counter().inner, kCounterPriority);
  counter().inner = nullptr;
}

int64_t TensorMemory::live_bytes() const { return counter().live; }
int64_t TensorMemory::peak_bytes() const { return counter().peak; }
void TensorMemory::reset_peak() { counter().peak = counter().live.load(); }

}  // namespace fsdp::util
