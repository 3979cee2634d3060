#pragma once

// Counts the bytes of all CPU tensors that are allocated while a scope of counting is open.

#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <cstdint>

namespace fsdp::testing {

/// Passes requests on to the allocator that was set before. Process-wide; one scope at a time.
class CountingAllocator final : public c10::Allocator {
 public:
  /// What was allocated since the scope began and is alive now, and the most that it ever was.
  class Scope {
   public:
    Scope() : counter_(instance()) {
      counter_.live_ = 0;
      counter_.peak_ = 0;
      c10::SetCPUAllocator(&counter_, /*priority=*/255);
    }
    ~Scope() { c10::SetCPUAllocator(counter_.inner_, /*priority=*/255); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

    int64_t live_bytes() const { return counter_.live_; }
    int64_t peak_bytes() const { return counter_.peak_; }

   private:
    CountingAllocator& counter_;
  };

  c10::DataPtr allocate(size_t bytes) override {
    auto* block = new Block{inner_->allocate(bytes), static_cast<int64_t>(bytes)};
    int64_t live = live_ += block->bytes;
    for (int64_t peak = peak_; live > peak && !peak_.compare_exchange_weak(peak, live);) {
    }
    return {block->data.get(), block, &release, c10::Device(c10::DeviceType::CPU)};
  }
  void copy_data(void* target, const void* source, std::size_t bytes) const override {
    default_copy_data(target, source, bytes);
  }

 private:
  struct Block {
    c10::DataPtr data;
    int64_t bytes;
  };

  CountingAllocator() : inner_(c10::GetCPUAllocator()) {}
  /// Never destroyed: tensors may outlive every scope.
  static CountingAllocator& instance() {
    static auto* counter = new CountingAllocator;
    return *counter;
  }
  static void release(void* context) {
    auto* block = static_cast<Block*>(context);
    instance().live_ -= block->bytes;
    delete block;
  }

  c10::Allocator* inner_;
  std::atomic<int64_t> live_ = 0, peak_ = 0;
};

}  // namespace fsdp::testing
