#pragma once

// What every fuzz target shares. A target takes bytes and hands them to a reader as a file or a text; the
// reader may refuse them with the error of a damaged file, and nothing else may happen.
//
// libFuzzer (https://llvm.org/docs/LibFuzzer.html) makes programs of the targets (scripts/fuzz);
// replay_test.cpp runs them over the committed corpus in every test run.

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <stdexcept>
#include <string>

#include "base/util/error.h"

namespace fsdp::fuzz {

/// A file in memory that readers open by a path.
class MemoryFile {
 public:
  MemoryFile(const uint8_t* data, size_t size) : fd_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    if (fd_ < 0) throw std::runtime_error("memfd_create failed");
    for (size_t done = 0; done < size;) {
      ssize_t written = ::write(fd_, data + done, size - done);
      if (written <= 0) throw std::runtime_error("cannot write a file in memory");
      done += static_cast<size_t>(written);
    }
  }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::filesystem::path path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

/// Runs a reader. Any exception but the errors of a damaged file passes, and ends the program.
template <typename Reader>
void refuse_or_read(const Reader& reader) {
  try {
    reader();
  } catch (const util::Error& error) {
    if (error.kind() != ErrorKind::kCheckpoint && error.kind() != ErrorKind::kData) throw;
    if (std::string(error.what()).find('\n') != std::string::npos)
      throw;  // one line, whatever the file holds
  }
}

/// Enough for every seed; more would only make the fuzzer slow.
inline constexpr int64_t kMostElements = 1 << 16;

}  // namespace fsdp::fuzz
