#include "util/mapped_allocator.h"

#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>

#include "util/error.h"
#include "util/system.h"

namespace fsdp::util {
namespace {

constexpr int64_t kSmallest = 128 << 10;  ///< malloc's first threshold for a map, too
constexpr int64_t kHugePage = 2 << 20;
constexpr int64_t kSmallestOfOwnMap = 2 * kHugePage;
/// Smaller blocks lie one after another in maps of this size, so that their pages are huge too: page by page of 4 KiB,
/// the first step of a 135 M model spends a quarter of its time in page faults.
constexpr int64_t kSharedMap = 16 * kHugePage;
constexpr uint8_t kPriority = 100;
/// Activations, gradients and the buffers of kernels follow each other in different sizes. With a fifth to
/// spare, and blocks of up to three times the size asked for instead of a new map, steps of transformers find
/// all their blocks waiting; otherwise the system clears half of their memory again in each step.
constexpr int64_t kLargestReuse = 3;

/// A map of huge pages; nullptr if the system refuses.
std::byte* map(int64_t bytes) {
  const int64_t more = kHugePage - page_bytes();  // to begin at a huge page's boundary
  void* whole = ::mmap(nullptr, static_cast<size_t>(bytes + more), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (whole == MAP_FAILED) return nullptr;
  auto* first = static_cast<std::byte*>(whole);
  const auto address = reinterpret_cast<uintptr_t>(whole);
  const auto before = static_cast<int64_t>(-address % kHugePage);
  if (before > 0) ::munmap(first, static_cast<size_t>(before));
  if (before < more) ::munmap(first + before + bytes, static_cast<size_t>(more - before));
  ::madvise(first + before, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  return first + before;
}

}  // namespace

BlockChoice choose_block(const std::vector<int64_t>& waiting, int64_t nbytes, int64_t held, int64_t most,
                         int64_t largest_reuse) {
  BlockChoice choice;
  const auto choose_up_to = [&](int64_t largest) {
    for (size_t i = 0; i < waiting.size(); ++i) {
      if (waiting[i] < nbytes || waiting[i] > largest) continue;
      if (!choice.reuse || waiting[i] < waiting[*choice.reuse]) choice.reuse = i;
    }
  };
  // With more than an eighth to spare, units of different sizes would take each other's blocks, and the pool
  // would hold more than is ever in use at once.
  choose_up_to(nbytes + nbytes / 8);
  if (choice.reuse || held + nbytes <= most) return choice;
  choose_up_to(nbytes * largest_reuse);
  if (choice.reuse) return choice;
  while (choice.give_up < waiting.size() && held + nbytes > most) held -= waiting[choice.give_up++];
  return choice;
}

MappedAllocator& MappedAllocator::instance() {
  static auto* allocator = new MappedAllocator;
  return *allocator;
}

void MappedAllocator::install() { c10::SetCPUAllocator(&instance(), kPriority); }

c10::DataPtr MappedAllocator::allocate(size_t bytes) {
  if (bytes < kSmallest) return c10::GetDefaultCPUAllocator()->allocate(bytes);
  const int64_t page = page_bytes();
  void* data = take((static_cast<int64_t>(bytes) + page - 1) / page * page);
  // If there is no more memory, libtorch's allocator throws the usual error.
  if (data == nullptr) return c10::GetDefaultCPUAllocator()->allocate(bytes);
  return {data, data, &release, c10::Device(c10::DeviceType::CPU)};
}

c10::DeleterFnPtr MappedAllocator::raw_deleter() const { return &release; }

void MappedAllocator::copy_data(void* target, const void* source, std::size_t bytes) const {
  default_copy_data(target, source, bytes);
}

void* MappedAllocator::new_block(int64_t bytes) {
  if (bytes >= kSmallestOfOwnMap) return map(bytes);
  if (room_bytes_ < bytes) {
    std::byte* more = map(kSharedMap);
    if (more == nullptr) return nullptr;
    if (room_bytes_ > 0) FSDP_CHECK(::munmap(room_, static_cast<size_t>(room_bytes_)) == 0);
    room_ = more;
    room_bytes_ = kSharedMap;
  }
  void* block = room_;
  room_ += bytes;
  room_bytes_ -= bytes;
  return block;
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
  void* data = new_block(bytes);
  if (data == nullptr) {
    give_up(waiting_.size());
    data = new_block(bytes);
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
  if (reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(page_bytes()) == 0) {
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
