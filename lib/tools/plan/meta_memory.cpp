#include "tools/plan/meta_memory.h"

#include <c10/core/Allocator.h>

#include <utility>

#include "base/util/error.h"

namespace fsdp::plan {

struct MetaMemory::State {
  Listener listener;
  bool notifies = true, lives = true;
  uintptr_t next = kAlignment;

  static constexpr uintptr_t kAlignment = 256;  ///< alignment of CUDA's allocator

  void* address(size_t bytes) {
    return reinterpret_cast<void*>(std::exchange(
        next, next + (bytes / kAlignment + 1) * kAlignment));  // NOLINT(performance-no-int-to-ptr)
  }
};

/// Returns null, as libtorch's own allocator does, on threads without a MetaMemory.
class MetaAllocator final : public c10::Allocator {
 public:
  /// Never destroyed: tensors may outlive everything.
  static void install() {
    static const bool done = [] {
      c10::SetAllocator(c10::kMeta, new MetaAllocator, /*priority=*/255);
      return true;
    }();
    static_cast<void>(done);
  }

  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device device(c10::kMeta);
    if (!of_thread) return {nullptr, nullptr, &release, device};
    void* address = of_thread->address(bytes);
    if (!of_thread->notifies || bytes == 0) return {address, nullptr, &release, device};
    auto* block = new MetaBlock{of_thread, of_thread->listener.takes(static_cast<int64_t>(bytes))};
    return {address, block, &release, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void*, const void*, std::size_t) const override {}

  static thread_local std::shared_ptr<MetaMemory::State> of_thread;

 private:
  struct MetaBlock {
    std::shared_ptr<MetaMemory::State> state;
    size_t number;
  };
  static void release(void* context) {
    const std::unique_ptr<MetaBlock> block(static_cast<MetaBlock*>(context));
    if (block && block->state->lives) block->state->listener.gives(block->number);
  }
};
thread_local std::shared_ptr<MetaMemory::State> MetaAllocator::of_thread;

MetaMemory::MetaMemory(Listener listener) : state_(std::make_shared<State>()) {
  FSDP_CHECK(!MetaAllocator::of_thread, "one MetaMemory at a time on a thread");
  MetaAllocator::install();
  state_->listener = std::move(listener);
  MetaAllocator::of_thread = state_;
}

MetaMemory::~MetaMemory() {
  state_->lives = false;
  MetaAllocator::of_thread.reset();
}

MetaMemory::Muted::Muted() : before_(std::exchange(MetaAllocator::of_thread->notifies, false)) {}
MetaMemory::Muted::~Muted() { MetaAllocator::of_thread->notifies = before_; }

}  // namespace fsdp::plan
