#include "comm/shm/shared_segment.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <random>
#include <stdexcept>

#include "base/util/error.h"
#include "base/util/system.h"

namespace fsdp::comm {
namespace {

constexpr int64_t kHugePage = 2 << 20;

int64_t rounded_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

[[noreturn]] void refuse(const std::string& what, int error_number) {
  throw std::runtime_error(concat(what, ": ", util::errno_text(error_number)));
}

uint64_t random_sign() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32 | device()) | 1;  // never 0, which fresh memory contains
}

}  // namespace

std::shared_ptr<SharedSegment> SharedSegment::create(int64_t bytes) {
  FSDP_CHECK(bytes > kControlBytes, "a segment of ", bytes, " bytes has no room for data");
  // Growing a file beyond this limit ends the process by SIGXFSZ.
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      limit.rlim_cur < static_cast<rlim_t>(bytes)) {
    throw std::runtime_error(
        concat("the limit on the size of files (ulimit -f) is ", limit.rlim_cur, " bytes"));
  }
  std::shared_ptr<SharedSegment> segment(new SharedSegment);
  segment->bytes_ = bytes;
  constexpr unsigned kNoExecution = 8;  // MFD_NOEXEC_SEAL, since Linux 6.3
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  segment->fd_ = ::memfd_create("fsdp-shared", kFlags | kNoExecution);
  if (segment->fd_ < 0 && errno == EINVAL) segment->fd_ = ::memfd_create("fsdp-shared", kFlags);
  if (segment->fd_ < 0) refuse("memfd_create failed", errno);
  if (::ftruncate(segment->fd_, bytes) != 0) refuse("a memfd cannot be enlarged", errno);
  // Access to memory removed by shrinking the file would end the process by SIGBUS.
  ::fcntl(segment->fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  segment->map(true);
  if (!segment->reserve(0, util::page_bytes())) refuse("no memory is left for a memfd", ENOMEM);
  const uint64_t sign = random_sign();
  std::memcpy(segment->data_, &sign, sizeof(sign));
  segment->free_ = {util::FreeRanges(kControlBytes, segment->common_begin()),
                    util::FreeRanges(segment->common_begin(), bytes),
                    util::FreeRanges(util::page_bytes(), kControlBytes)};
  return segment;
}

std::shared_ptr<SharedSegment> SharedSegment::open(pid_t pid, int fd, int64_t bytes, uint64_t sign) {
  std::shared_ptr<SharedSegment> segment(new SharedSegment);
  segment->bytes_ = bytes;
  const std::string path = concat("/proc/", pid, "/fd/", fd);
  segment->fd_ = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (segment->fd_ < 0) refuse(concat(path, " cannot be opened"), errno);
  if (::lseek(segment->fd_, 0, SEEK_END) != bytes) {
    throw std::runtime_error(concat(path, " is not the shared memory that its process announced"));
  }
  segment->map(false);
  if (segment->sign() != sign) {
    throw std::runtime_error(concat(path, " is not the shared memory that its process announced"));
  }
  ::close(std::exchange(segment->fd_, -1));  // the mapping is enough
  return segment;
}

void SharedSegment::map(bool own) {
  // Reserves enough addresses to start at a boundary of huge pages.
  const auto room = static_cast<size_t>(bytes_ + kHugePage);
  void* whole = ::mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (whole == MAP_FAILED) refuse(concat("no address space for ", bytes_ >> 30, " GiB"), errno);
  auto* first = static_cast<std::byte*>(whole);
  const auto before = static_cast<int64_t>(-reinterpret_cast<uintptr_t>(whole) % kHugePage);
  if (before > 0) ::munmap(first, static_cast<size_t>(before));
  ::munmap(first + before + bytes_, static_cast<size_t>(kHugePage - before));
  data_ = first + before;
  const auto map_part = [&](int64_t begin, int64_t end, int protection) {
    void* part = ::mmap(data_ + begin, static_cast<size_t>(end - begin), protection,
                        MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd_, begin);
    if (part == MAP_FAILED) refuse("a memfd cannot be mapped", errno);
  };
  map_part(0, kControlBytes, PROT_READ | PROT_WRITE);
  map_part(kControlBytes, common_begin(), own ? PROT_READ | PROT_WRITE : PROT_READ);
  map_part(common_begin(), bytes_, PROT_READ | PROT_WRITE);
  const auto data_bytes = static_cast<size_t>(bytes_ - kControlBytes);
  ::madvise(data_ + kControlBytes, data_bytes, MADV_HUGEPAGE);  // if the system has them for memfds
  if (!own) ::madvise(data_, static_cast<size_t>(bytes_), MADV_DONTDUMP);
}

SharedSegment::~SharedSegment() {
  if (data_ != nullptr) ::munmap(data_, static_cast<size_t>(bytes_));
  if (fd_ >= 0) ::close(fd_);
}

uint64_t SharedSegment::sign() const {
  uint64_t sign = 0;
  std::memcpy(&sign, data_, sizeof(sign));
  return sign;
}

std::unique_ptr<SharedSegment::Block> SharedSegment::take(const std::shared_ptr<SharedSegment>& segment,
                                                          int64_t bytes, Part part) {
  if (bytes > segment->bytes_) return nullptr;
  bytes = rounded_up(std::max<int64_t>(bytes, 1), util::page_bytes());
  std::optional<int64_t> offset;
  {
    std::lock_guard lock(segment->mutex_);
    offset = segment->ranges_of(part).take(bytes, bytes >= 2 * kHugePage ? kHugePage : util::page_bytes());
    if (!offset) return nullptr;
    segment->taken_ += bytes;
  }
  auto block = std::make_unique<Block>(segment, *offset, bytes);
  if (!segment->reserve(*offset, bytes)) return nullptr;
  return block;
}

bool SharedSegment::reserve(int64_t offset, int64_t bytes) {
#ifdef MADV_POPULATE_WRITE
  constexpr int kPopulateWrite = MADV_POPULATE_WRITE;
#else
  constexpr int kPopulateWrite = 23;  // Linux 5.14
#endif
  // Unlike fallocate() it faults the pages in, as huge pages if the mapping allows them.
  const auto size = static_cast<size_t>(bytes);
  if (TEMP_FAILURE_RETRY(::madvise(data_ + offset, size, kPopulateWrite)) == 0) return true;
  return errno == EINVAL && TEMP_FAILURE_RETRY(::fallocate(fd_, 0, offset, bytes)) == 0;
}

void SharedSegment::give_back(int64_t offset, int64_t bytes) {
  // Frees the memory; the addresses stay mapped.
  if (!keeps_memory_) ::madvise(data_ + offset, static_cast<size_t>(bytes), MADV_REMOVE);
  std::lock_guard lock(mutex_);
  taken_ -= bytes;
  const Part data = offset < common_begin() ? Part::kOwn : Part::kCommon;
  ranges_of(offset < kControlBytes ? Part::kControl : data).give_back(offset, bytes);
}

int64_t SharedSegment::common_begin() const {
  return kControlBytes + (bytes_ - kControlBytes) / 2 / kHugePage * kHugePage;
}

std::optional<int64_t> SharedSegment::offset_of(const void* data, int64_t bytes) const {
  const auto begin = reinterpret_cast<uintptr_t>(data_), at = reinterpret_cast<uintptr_t>(data);
  if (at < begin || at + static_cast<uintptr_t>(bytes) > begin + static_cast<uintptr_t>(bytes_)) {
    return std::nullopt;
  }
  return static_cast<int64_t>(at - begin);
}

int64_t SharedSegment::taken_bytes() const {
  std::lock_guard lock(mutex_);
  return taken_;
}

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t) &&
              std::atomic<uint32_t>::is_always_lock_free);

void futex_wait(std::atomic<uint32_t>& word, uint32_t value, int64_t milliseconds) {
  const timespec most{.tv_sec = milliseconds / 1000, .tv_nsec = milliseconds % 1000 * 1'000'000};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, value, &most, nullptr, 0);
}

void futex_wake_all(std::atomic<uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace fsdp::comm
