#pragma once

// File descriptors, and the time-outs with which poll() waits for them.

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <utility>

namespace fsdp::launch {

/// Owns a file descriptor. Descriptors must be opened with O_CLOEXEC, so that workers do not inherit them.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  ~Descriptor() { close(); }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) {
      close();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }

  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  void close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }

 private:
  int fd_;
};

/// Milliseconds until `due`, rounded up; 0 if it has passed.
inline int milliseconds_until(std::chrono::steady_clock::time_point due) {
  const auto left = due - std::chrono::steady_clock::now();
  const auto milliseconds = std::chrono::ceil<std::chrono::milliseconds>(left).count();
  return static_cast<int>(std::clamp<int64_t>(milliseconds, 0, std::numeric_limits<int>::max()));
}

/// The shorter of two time-outs. -1: no time-out.
inline int sooner(int a, int b) { return a < 0 ? b : b < 0 ? a : std::min(a, b); }

}  // namespace fsdp::launch
