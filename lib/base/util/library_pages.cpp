#include "base/util/library_pages.h"

#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>

#include "base/util/system.h"

namespace fsdp::util {
namespace {

/// A part of a program or library that is mapped without the right to write.
struct MappedPart {
  uintptr_t begin = 0, end = 0;  ///< whole pages
};

class Unmapping {
 public:
  explicit Unmapping(int pagemap) : pagemap_(pagemap) {}

  void unmap(MappedPart part) {
    const auto page = static_cast<uintptr_t>(page_bytes());
    std::array<uint64_t, 512> entries{};  // Linux: Documentation/admin-guide/mm/pagemap.rst
    for (uintptr_t at = part.begin; at < part.end; at += entries.size() * page) {
      const auto offset = static_cast<off_t>(at / page * sizeof(uint64_t));
      const ssize_t read = ::pread(pagemap_, entries.data(), sizeof(entries), offset);
      if (read <= 0) return;
      const size_t known = std::min(static_cast<size_t>(read) / sizeof(uint64_t), (part.end - at) / page);
      for (size_t i = 0; i < known;) {
        size_t end = i;
        while (end < known && is_of_file(entries[end])) ++end;
        const size_t bytes = (end - i) * page;
        // The system refuses this for locked pages, which stay.
        if (bytes > 0 && ::madvise(reinterpret_cast<void*>(at + i * page), bytes, MADV_DONTNEED) == 0) {
          bytes_ += static_cast<int64_t>(bytes);
        }
        i = end + 1;
      }
    }
  }

  int64_t bytes() const { return bytes_; }

 private:
  static bool is_of_file(uint64_t entry) {
    constexpr uint64_t kPresent = uint64_t{1} << 63, kOfFile = uint64_t{1} << 61;
    return (entry & kPresent) != 0 && (entry & kOfFile) != 0;
  }

  int pagemap_;
  int64_t bytes_ = 0;
};

int unmap_parts(dl_phdr_info* object, size_t, void* unmapping) {
  // The kernel's vDSO, which no file backs.
  if (std::string_view(object->dlpi_name).starts_with("linux-")) return 0;
  const auto page = static_cast<uintptr_t>(page_bytes());
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const auto& header = object->dlpi_phdr[i];
    if (header.p_type != PT_LOAD || (header.p_flags & PF_W) != 0) continue;
    const uintptr_t begin = object->dlpi_addr + header.p_vaddr, end = begin + header.p_memsz;
    static_cast<Unmapping*>(unmapping)->unmap(
        {.begin = begin / page * page, .end = (end + page - 1) / page * page});
  }
  return 0;
}

}  // namespace

int64_t unmap_library_pages() {
  const int pagemap = ::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  if (pagemap < 0) return 0;
  Unmapping unmapping(pagemap);
  ::dl_iterate_phdr(unmap_parts, &unmapping);
  ::close(pagemap);
  return unmapping.bytes();
}

}  // namespace fsdp::util
