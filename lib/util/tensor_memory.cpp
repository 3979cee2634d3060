#include "util/tensor_memory.h"

#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <cstddef>
#include <new>
#include <utility>

#include "util/error.h"

namespace fsdp::util {
namespace {

/// Higher than that of any allocator that libtorch sets.
constexpr uint8_t kCounterPriority = 255;

class CountingAllocator final : public c10::Allocator {
 public:
  /// Never destroyed: tensors may outlive every TensorMemory.
  static CountingAllocator& instance() {
    static auto* allocator = new CountingAllocator;
    return *allocator;
  }

  void begin() {
    FSDP_CHECK(inner_ == nullptr, "one TensorMemory at a time");
    ++generation_;
    live_ = 0;
    peak_ = 0;
    inner_ = c10::GetCPUAllocator();
    c10::SetCPUAllocator(this, kCounterPriority);
  }

  void end() {
    c10::SetCPUAllocator(inner_, kCounterPriority);
    inner_ = nullptr;
  }

  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return inner_->allocate(0);
    c10::DataPtr memory = inner_->allocate(kHeaderBytes + bytes);
    auto* first = static_cast<std::byte*>(memory.get());
    new (first) Header{std::move(memory), static_cast<int64_t>(bytes), generation_.load()};
    int64_t live = live_ += static_cast<int64_t>(bytes);
    for (int64_t peak = peak_; live > peak && !peak_.compare_exchange_weak(peak, live);) {
    }
    void* data = first + kHeaderBytes;
    return {data, data, &release, c10::Device(c10::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  void copy_data(void* target, const void* source, std::size_t bytes) const override {
    default_copy_data(target, source, bytes);
  }

  int64_t live() const { return live_; }
  int64_t peak() const { return peak_; }
  void reset_peak() { peak_ = live_.load(); }

 private:
  /// Stands before the tensor's bytes: kernels that take scratch memory from the allocator (oneDNN's) want
  /// the pointer that they got to be all that freeing needs.
  struct Header {
    c10::DataPtr memory;
    int64_t bytes;
    uint64_t generation;
  };
  static constexpr size_t kHeaderBytes = 64;  ///< libtorch aligns tensors to as much
  static_assert(sizeof(Header) <= kHeaderBytes);

  static void release(void* data) {
    if (data == nullptr) return;
    auto* header = reinterpret_cast<Header*>(static_cast<std::byte*>(data) - kHeaderBytes);
    CountingAllocator& counter = instance();
    if (header->generation == counter.generation_) counter.live_ -= header->bytes;
    c10::DataPtr memory = std::move(header->memory);  // goes last: the header lies in it
    header->~Header();
  }

  c10::Allocator* inner_ = nullptr;
  std::atomic<uint64_t> generation_ = 0;  ///< of the TensorMemory that counts; older memory does not
  std::atomic<int64_t> live_ = 0, peak_ = 0;
};

}  // namespace

TensorMemory::TensorMemory() { CountingAllocator::instance().begin(); }
TensorMemory::~TensorMemory() { CountingAllocator::instance().end(); }
int64_t TensorMemory::live_bytes() const { return CountingAllocator::instance().live(); }
int64_t TensorMemory::peak_bytes() const { return CountingAllocator::instance().peak(); }
void TensorMemory::reset_peak() { CountingAllocator::instance().reset_peak(); }

}  // namespace fsdp::util
