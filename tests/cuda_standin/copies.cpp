// Copies and memsets. Late ones show what a program takes for granted: pinned memory that a copy will fill
// holds NaNs until then, and pinned memory that a copy will read must not change before. That is said of the
// host. Where copies that are under way use the same pinned memory, their streams may have an order, which
// the search for races checks.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "capture.h"
#include "device.h"
#include "memory.h"
#include "report.h"
#include "settings.h"
#include "standin.h"
#include "stream.h"

namespace standin {
namespace {

constexpr int kPoison = 0xFF;         // NaN in each floating-point type
constexpr long kKernelsOfACopy = 20;  // the time of a copy over PCIe, in kernels

struct Copy {
  void* to;          ///< as the stand-in sees it
  const void* from;  ///< likewise
  size_t bytes;

  void run() const { std::memmove(to, from, bytes); }
};

uint64_t hash_of(const void* data, size_t bytes) {
  uint64_t hash = bytes;
  const auto* at = static_cast<const unsigned char*>(data);
  for (; bytes >= sizeof(uint64_t); bytes -= sizeof(uint64_t), at += sizeof(uint64_t)) {
    uint64_t word;
    std::memcpy(&word, at, sizeof(word));
    hash = (hash ^ word) * 0x9E3779B97F4A7C15ULL;
    hash ^= hash >> 29;
  }
  for (; bytes > 0; --bytes, ++at) hash = (hash ^ *at) * 1099511628211ULL;
  return hash;
}

/// Pinned memory of copies that are under way.
class PinnedInUse {
 public:
  /// Whether no other copy uses the memory, or none that writes it.
  bool is_free(const void* data, size_t bytes, bool of_writers) {
    const std::lock_guard lock(mutex_);
    const auto begin = reinterpret_cast<uintptr_t>(data);
    return std::none_of(used_.begin(), used_.end(), [&](const Use& use) {
      return (use.writes || !of_writers) && use.begin < begin + bytes && begin < use.begin + use.bytes;
    });
  }
  void add(const void* data, size_t bytes, bool writes) {
    const std::lock_guard lock(mutex_);
    used_.push_back({reinterpret_cast<uintptr_t>(data), bytes, writes});
  }
  void remove(const void* data, size_t bytes, bool writes) {
    const std::lock_guard lock(mutex_);
    const auto begin = reinterpret_cast<uintptr_t>(data);
    const auto found = std::find_if(used_.begin(), used_.end(), [&](const Use& use) {
      return use.begin == begin && use.bytes == bytes && use.writes == writes;
    });
    if (found != used_.end()) used_.erase(found);  // a graph's copies are added once and run often
  }

 private:
  struct Use {
    uintptr_t begin;
    size_t bytes;
    bool writes;
  };
  std::mutex mutex_;
  std::list<Use> used_;
};

PinnedInUse& pinned_in_use() {
  static auto* in_use = new PinnedInUse;  // streams may outlive other static objects
  return *in_use;
}

void check_not_captured(const char* what, cudaStream_t handle) {
  const CUstream_st* stream = find_stream(handle);
  if (stream != nullptr && stream->capture) violation(std::string("captured: ") + what);
}

cudaError_t from_pinned(const char* who, const Copy& copy, cudaStream_t handle) {
  STANDIN_COUNT("copies from pinned memory");
  if (!settings().late) return submit(who, handle, Kind::kOther, [copy] { copy.run(); });
  const bool is_known = pinned_in_use().is_free(copy.from, copy.bytes, /*of_writers=*/true);
  pinned_in_use().add(copy.from, copy.bytes, /*writes=*/false);
  return submit(who, handle, Kind::kOther, [copy, is_known, hash = hash_of(copy.from, copy.bytes)] {
    take_time(kKernelsOfACopy * settings().kernel_us);
    if (is_known && hash_of(copy.from, copy.bytes) != hash) {
      violation("the pinned source of a copy to the device changes before the copy is done");
    }
    copy.run();
    pinned_in_use().remove(copy.from, copy.bytes, /*writes=*/false);
  });
}

/// The runtime stages it before it returns.
cudaError_t from_pageable(const char* who, const Copy& copy, cudaStream_t handle) {
  STANDIN_COUNT("copies from pageable memory");
  check_not_captured("a copy from pageable memory", handle);
  const auto* begin = static_cast<const char*>(copy.from);
  auto staged = std::make_shared<std::vector<char>>(begin, begin + copy.bytes);
  return submit(who, handle, Kind::kOther,
                [to = copy.to, staged] { std::memcpy(to, staged->data(), staged->size()); });
}

cudaError_t to_pinned(const char* who, const Copy& copy, cudaStream_t handle) {
  STANDIN_COUNT("copies to pinned memory");
  if (!settings().late) return submit(who, handle, Kind::kOther, [copy] { copy.run(); });
  if (pinned_in_use().is_free(copy.to, copy.bytes, /*of_writers=*/false)) {
    std::memset(copy.to, kPoison, copy.bytes);
  }
  pinned_in_use().add(copy.to, copy.bytes, /*writes=*/true);
  return submit(who, handle, Kind::kOther, [copy] {
    take_time(kKernelsOfACopy * settings().kernel_us);
    copy.run();
    pinned_in_use().remove(copy.to, copy.bytes, /*writes=*/true);
  });
}

/// The runtime waits for it.
cudaError_t to_pageable(const char* who, const Copy& copy, cudaStream_t handle) {
  STANDIN_COUNT("copies to pageable memory");
  check_not_captured("a copy to pageable memory", handle);
  const cudaError_t error = submit(who, handle, Kind::kOther, [copy] { copy.run(); });
  if (error == cudaSuccess) wait_for(find_stream(handle));
  return error;
}

cudaError_t copy(const char* who, void* to, const void* from, size_t bytes, cudaStream_t handle) {
  enter(who);
  if (bytes == 0) return cudaSuccess;
  const bool to_device = device_of(to) >= 0, from_device = device_of(from) >= 0;
  const Copy copy{.to = to_device ? view(to, bytes, who) : to,
                  .from = from_device ? view(from, bytes, who) : from,
                  .bytes = bytes};
  if (copy.to == nullptr || copy.from == nullptr) return failed(cudaErrorInvalidValue);
  CUstream_st* const stream = find_stream(handle);
  access(who, stream, {from, bytes, false});
  access(who, stream, {to, bytes, true});
  if (to_device && from_device) {
    STANDIN_COUNT("copies within the device");
    standin_launched(("copy of " + std::to_string(bytes) + " bytes").c_str());
    return submit(who, handle, Kind::kOther, [copy] { copy.run(); });
  }
  if (to_device) {
    return is_pinned(from, bytes) ? from_pinned(who, copy, handle) : from_pageable(who, copy, handle);
  }
  if (from_device)
    return is_pinned(to, bytes) ? to_pinned(who, copy, handle) : to_pageable(who, copy, handle);
  STANDIN_COUNT("copies within the host");
  return submit(who, handle, Kind::kOther, [copy] { copy.run(); });
}

}  // namespace
}  // namespace standin

using namespace standin;

STANDIN_API cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t handle) {
  STANDIN_COUNT("cudaMemcpyAsync");
  return copy("cudaMemcpyAsync", to, from, bytes, handle);
}

STANDIN_API cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  STANDIN_COUNT("cudaMemcpy");
  if (cudaError_t error = refused_in_capture("cudaMemcpy")) return error;
  const cudaError_t error = copy("cudaMemcpy", to, from, bytes, nullptr);
  if (error == cudaSuccess) wait_for(find_stream(nullptr));
  return error;
}

STANDIN_API cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t handle) {
  STANDIN_COUNT("cudaMemcpyPeerAsync");
  return copy("cudaMemcpyPeerAsync", to, from, bytes, handle);
}

STANDIN_API cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind, cudaStream_t handle) {
  STANDIN_COUNT("cudaMemcpy2DAsync");
  for (size_t row = 0; row < height; ++row) {
    void* const into = static_cast<char*>(to) + row * to_pitch;
    const void* const out_of = static_cast<const char*>(from) + row * from_pitch;
    if (cudaError_t error = copy("cudaMemcpy2DAsync", into, out_of, width, handle)) return error;
  }
  return cudaSuccess;
}

STANDIN_API cudaMemcpyToSymbol(const void*, const void*, size_t, size_t, cudaMemcpyKind) {
  STANDIN_COUNT("cudaMemcpyToSymbol");
  return cudaSuccess;
}

STANDIN_API cudaMemsetAsync(void* pointer, int value, size_t bytes, cudaStream_t handle) {
  STANDIN_ENTER(cudaMemsetAsync);
  if (bytes == 0) return cudaSuccess;
  void* const memory = view(pointer, bytes, "cudaMemsetAsync");
  if (memory == nullptr) return failed(cudaErrorInvalidValue);
  access("cudaMemsetAsync", find_stream(handle), {pointer, bytes, true});
  standin_launched(("memset of " + std::to_string(bytes) + " bytes").c_str());
  return submit("cudaMemsetAsync", handle, Kind::kOther, [=] { std::memset(memory, value, bytes); });
}

STANDIN_API cudaMemset(void* pointer, int value, size_t bytes) {
  if (cudaError_t error = refused_in_capture("cudaMemset")) return error;
  return cudaMemsetAsync(pointer, value, bytes, nullptr);
}
