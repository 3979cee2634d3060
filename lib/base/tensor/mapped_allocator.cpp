#include "base/tensor/mapped_allocator.h"

#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>
#include <unistd.h>

#include <optional>
#include <tuple>
#include <utility>

#include "base/util/error.h"
#include "base/util/system.h"

namespace fsdp::util {
namespace {

constexpr int64_t kSmallest = 128 << 10;  ///< also malloc's initial threshold for mmap()
constexpr int64_t kHugePage = 2 << 20;
constexpr int64_t kGrowth = 32 * kHugePage;  ///< unit by which the usable part grows
constexpr uint8_t kPriority = 100;

int64_t rounded_up(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }

/// Reserves addresses, without memory, for several times the machine's memory, because places without memory
/// may be too short for later requests. Reserves fewer if the process may not have so many; {nullptr, 0} for
/// very few.
std::pair<std::byte*, int64_t> reserve_region() {
  constexpr int64_t kTimes = 8, kLeast = int64_t{1} << 30;
  const int64_t memory = static_cast<int64_t>(::sysconf(_SC_PHYS_PAGES)) * page_bytes();
  for (int64_t length = rounded_up(kTimes * memory, kGrowth); length >= kLeast;
       length = rounded_up(length / 2, kGrowth)) {
    void* whole = ::mmap(nullptr, static_cast<size_t>(length + kHugePage), PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (whole == MAP_FAILED) continue;
    const auto before = static_cast<int64_t>(-reinterpret_cast<uintptr_t>(whole) % kHugePage);
    auto* region = static_cast<std::byte*>(whole) + before;
    ::madvise(region, static_cast<size_t>(length), MADV_HUGEPAGE);
    return {region, length};
  }
  return {nullptr, 0};
}

}  // namespace

MappedAllocator::MappedAllocator() {
  std::tie(region_, length_) = reserve_region();
  if (length_ > 0) unused_.give_back(0, length_);
}

MappedAllocator& MappedAllocator::instance() {
  static auto* allocator = new MappedAllocator;
  return *allocator;
}

void MappedAllocator::install() { c10::SetCPUAllocator(&instance(), kPriority); }

c10::DataPtr MappedAllocator::allocate(size_t bytes) {
  if (bytes < kSmallest) return c10::GetDefaultCPUAllocator()->allocate(bytes);
  // If there is no more memory, libtorch's allocator throws the usual error.
  void* data = bytes <= static_cast<size_t>(length_)
                   ? take(rounded_up(static_cast<int64_t>(bytes), page_bytes()))
                   : nullptr;
  if (data == nullptr) return c10::GetDefaultCPUAllocator()->allocate(bytes);
  return {data, data, &release, c10::Device(c10::DeviceType::CPU)};
}

c10::DeleterFnPtr MappedAllocator::raw_deleter() const { return &release; }

void MappedAllocator::copy_data(void* target, const void* source, std::size_t bytes) const {
  default_copy_data(target, source, bytes);
}

/// Returns nullptr if the system refuses the memory.
std::byte* MappedAllocator::take(int64_t bytes) {
  std::lock_guard lock(mutex_);
  const int64_t most = most_held_bytes(std::max(peak_, live_ + bytes));
  std::optional<int64_t> offset = freed_.take(bytes, page_bytes());
  if (!offset) {
    give_up(held_ + bytes - most);
    offset = unused_.take(bytes, page_bytes());
    if (!offset) return nullptr;
    if (!make_usable(*offset + bytes)) {
      unused_.give_back(*offset, bytes);
      return nullptr;
    }
    held_ += bytes;
  }
  live_ += bytes;
  peak_ = std::max(peak_, live_);
  used_[region_ + *offset] = bytes;
  return region_ + *offset;
}

bool MappedAllocator::make_usable(int64_t end) {
  if (end <= usable_) return true;
  const int64_t usable = std::min(rounded_up(end, kGrowth), length_);
  if (::mprotect(region_ + usable_, static_cast<size_t>(usable - usable_), PROT_READ | PROT_WRITE) != 0) {
    return false;
  }
  usable_ = usable;
  return true;
}

void MappedAllocator::release(void* data) {
  if (data == nullptr) return;
  MappedAllocator& self = instance();
  {
    std::lock_guard lock(self.mutex_);
    if (const auto found = self.used_.find(data); found != self.used_.end()) {
      self.live_ -= found->second;
      self.freed_.give_back(static_cast<std::byte*>(data) - self.region_, found->second);
      self.used_.erase(found);
      return;
    }
  }
  c10::GetDefaultCPUAllocator()->raw_deallocate(data);
}

/// Returns the largest places first, which takes the fewest system calls.
void MappedAllocator::give_up(int64_t bytes) {
  while (bytes > 0) {
    const auto [offset, length] = freed_.largest();
    if (length == 0) return;
    const int64_t given = std::min(length, rounded_up(bytes, page_bytes()));
    const int64_t first = offset + length - given;
    freed_.shorten(offset, given);
    FSDP_CHECK(::madvise(region_ + first, static_cast<size_t>(given), MADV_DONTNEED) == 0);
    unused_.give_back(first, given);
    held_ -= given;
    bytes -= given;
  }
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
  give_up(held_);
}

}  // namespace fsdp::util
