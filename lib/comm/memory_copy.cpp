#include "comm/memory_copy.h"

#include <immintrin.h>

#include <atomic>
#include <cstddef>
#include <cstring>

namespace fsdp::comm {
namespace {

/// Measured: from here on it is a fifth to a third faster, below it slower, on a core with 1 MiB of
/// second-level cache. memcpy() does the same from the size of the third-level cache on, which all ranks of
/// a host share.
constexpr int64_t kStreamedBytes = 4 << 20;

std::atomic<int64_t> read_bytes, written_bytes;

[[gnu::target("avx")]] void stream(std::byte* to, const std::byte* from, int64_t bytes) {
  const auto before = static_cast<int64_t>(-reinterpret_cast<uintptr_t>(to) % 64);
  std::memcpy(to, from, static_cast<size_t>(before));
  int64_t done = before;
  for (; done + 128 <= bytes; done += 128) {
    const auto* source = reinterpret_cast<const __m256i*>(from + done);
    auto* target = reinterpret_cast<__m256i*>(to + done);
    _mm_prefetch(reinterpret_cast<const char*>(from + done + 1024), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(from + done + 1088), _MM_HINT_T0);
    const __m256i a = _mm256_loadu_si256(source), b = _mm256_loadu_si256(source + 1);
    const __m256i c = _mm256_loadu_si256(source + 2), d = _mm256_loadu_si256(source + 3);
    _mm256_stream_si256(target, a);
    _mm256_stream_si256(target + 1, b);
    _mm256_stream_si256(target + 2, c);
    _mm256_stream_si256(target + 3, d);
  }
  std::memcpy(to + done, from + done, static_cast<size_t>(bytes - done));
}

}  // namespace

MovedBytes moved_bytes() {
  return {.read = read_bytes.load(std::memory_order_relaxed),
          .written = written_bytes.load(std::memory_order_relaxed)};
}

void count_moved(const MovedBytes& moved) {
  read_bytes.fetch_add(moved.read, std::memory_order_relaxed);
  written_bytes.fetch_add(moved.written, std::memory_order_relaxed);
}

void copy_memory(void* to, const void* from, int64_t bytes) {
  count_moved({.read = bytes, .written = bytes});
  static const bool can_stream = __builtin_cpu_supports("avx");
  if (bytes >= kStreamedBytes && can_stream) {
    stream(static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes);
    _mm_sfence();
  } else {
    std::memcpy(to, from, static_cast<size_t>(bytes));
  }
}

}  // namespace fsdp::comm
