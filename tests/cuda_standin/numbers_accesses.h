#pragma once

// What emulated kernels read and write. Their sources are compiled with -fsanitize=thread, by which the
// compiler calls a function at each access to memory. The functions are here, in place of the sanitizer's
// library.

#include <cstddef>
#include <vector>

#include "standin.h"

namespace standin {

/// Neighbouring bytes that were accessed, in any order.
class Pieces {
 public:
  struct Piece {
    const char *begin = nullptr, *end = nullptr;
  };

  void add(const char* at, size_t bytes) {
    for (Piece& piece : open_) {
      if (at > piece.end || at + bytes < piece.begin) continue;
      if (at < piece.begin) piece.begin = at;
      if (at + bytes > piece.end) piece.end = at + bytes;
      return;
    }
    open_another({at, at + bytes});
  }
  /// Ascending, with gaps between them.
  std::vector<Piece> merged() const;

 private:
  static constexpr size_t kOpen = 8;  ///< as many tensors as a kernel goes through at a time

  void open_another(const Piece& piece);

  Piece open_[kOpen];
  size_t next_ = 0;  ///< of open_ that is closed for another
  std::vector<Piece> closed_;
};

/// Notes what the calling thread reads and writes of the current device's memory while the object lives.
class AccessRecord {
 public:
  AccessRecord();
  ~AccessRecord();
  AccessRecord(const AccessRecord&) = delete;
  AccessRecord& operator=(const AccessRecord&) = delete;

  void note(const void* pointer, size_t bytes, bool writes) {
    const auto* at = static_cast<const char*>(pointer);
    if (at < memory_.seen || at >= memory_.seen + memory_.bytes) return;
    (writes ? written_ : read_).add(at, bytes);
  }
  /// In the program's addresses.
  std::vector<Range> ranges() const;

 private:
  DeviceMemory memory_;
  Pieces read_, written_;
};

}  // namespace standin
