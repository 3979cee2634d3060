#include "util/mapped_allocator.h"

#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>

#include <algorithm>

#include "util/block_choice.h"
#include "util/error.h"

namespace fsdp::util {
namespace {

constexpr int64_t kPage = 4096;
constexpr int64_t kSmallest = 128 << 10;  ///< malloc too gives such a map of its own, at first
constexpr int64_t kHugePage = 2 << 20;
constexpr int64_t kSmallestOfHugePages = 2 * kHugePage;
constexpr uint8_t kPriority = 100;
/// Activations, gradients and what kernels take come in other sizes one after the other. With a fifth to
/// spare, and blocks of up to three times the size asked for where the alternative is the system, steps of
/// transformers find all their blocks waiting; without, they clear half of their memory anew in each step.
constexpr int64_t kLargestReuse = 3;

/// nullptr where the system has none.
void* map(int64_t bytes) {
  const bool huge = bytes >= kSmallestOfHugePages;
  const int64_t more = huge ? kHugePage - kPage : 0;  // to begin at a huge page's boundary
  void* whole = ::mmap(nullptr, static_cast<size_t>(bytes + more), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (whole == MAP_FAILED) return nullptr;
  if (!huge) return whole;
  auto* first = static_cast<std::byte*>(whole);
  const auto address = reinterpret_cast<uintptr_t>(whole);
  const auto before = static_cast<int64_t>(-address % kHugePage);
  if (before > 0) ::munmap(first, static_cast<size_t>(before));
  if (before < more) ::munmap(first + before + bytes, static_cast<size_t>(more - before));
  ::madvise(first + before, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  return first + before;
}

}  // namespace

MappedAllocator& MappedAllocator::instance() {
  static auto* allocator = new MappedAllocator;
  return *allocator;
}

void MappedAllocator::install() { c10::SetCPUAllocator(&instance(), kPriority); }

c10::DataPtr MappedAllocator::allocate(size_t bytes) {
  if (bytes < kSmallest) return c10::GetDefaultCPUAllocator()->allocate(bytes);
  void* data = take((static_cast<int64_t>(bytes) + kPage - 1) / kPage * kPage);
  // Where the system has no more, libtorch's own says so.
  if (data == nullptr) return c10::GetDefaultCPUAllocator()->allocate(bytes);
  return {data, data, &release, c10::Device(c10::DeviceType::CPU)};
}

c10::DeleterFnPtr MappedAllocator::raw_deleter() const { return &release; }

void MappedAllocator::copy_data(void* target, const void* source, std::size_t bytes) const {
  default_copy_data(target, source, bytes);
}

void* MappedAllocator::take(int64_t bytes) {
  std::lock_guard lock(mutex_);
  live_ += bytes;
  peak_ = std::max(peak_, live_);
  const BlockChoice choice =
      choose_block(waiting_sizes_, bytes, held_, most_held_bytes(peak_), kLargestReuse);
  if (choice.reuse) {
    const auto place = static_cast<std::ptrdiff_t>(*choice.reuse);
    void* data = waiting_[*choice.reuse];
    used_[data] = {.asked = bytes, .size = waiting_sizes_[*choice.reuse]};
    waiting_.erase(waiting_.begin() + place);
    waiting_sizes_.erase(waiting_sizes_.begin() + place);
    return data;
  }
  give_up(choice.give_up);
  void* data = map(bytes);
  if (data == nullptr) {
    give_up(waiting_.size());
    data = map(bytes);
  }
  if (data == nullptr) {
    live_ -= bytes;
    return nullptr;
  }
  held_ += bytes;
  used_[data] = {.asked = bytes, .size = bytes};
  return data;
}

void MappedAllocator::release(void* data) {
  if (data == nullptr) return;
  MappedAllocator& self = instance();
  if (reinterpret_cast<uintptr_t>(data) % kPage == 0) {
    std::lock_guard lock(self.mutex_);
    if (auto found = self.used_.find(data); found != self.used_.end()) {
      self.live_ -= found->second.asked;
      self.waiting_.push_back(data);
      self.waiting_sizes_.push_back(found->second.size);
      self.used_.erase(found);
      return;
    }
  }
  c10::GetDefaultCPUAllocator()->raw_deallocate(data);
}

void MappedAllocator::give_up(size_t count) {
  for (size_t i = 0; i < count; ++i) {
    held_ -= waiting_sizes_[i];
    FSDP_CHECK(::munmap(waiting_[i], static_cast<size_t>(waiting_sizes_[i])) == 0);
  }
  const auto end = static_cast<std::ptrdiff_t>(count);
  waiting_.erase(waiting_.begin(), waiting_.begin() + end);
  waiting_sizes_.erase(waiting_sizes_.begin(), waiting_sizes_.begin() + end);
}

int64_t MappedAllocator::held_bytes() const {
  std::lock_guard lock(mutex_);
  return held_;
}

int64_t MappedAllocator::live_bytes() const {
  std::lock_guard lock(mutex_);
  return live_;
}

void MappedAllocator::trim() {
  std::lock_guard lock(mutex_);
  give_up(waiting_.size());
}

}  // namespace fsdp::util
