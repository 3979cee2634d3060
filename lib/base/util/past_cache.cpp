#include "base/util/past_cache.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cstddef>
#include <cstring>

namespace fsdp::util {

#if defined(__x86_64__)

bool is_written_past_cache(int64_t bytes) {
  static const bool is_possible = __builtin_cpu_supports("avx");
  return is_possible && bytes >= 4 << 20;
}

[[gnu::target("avx")]] void write_past_cache(void* to, const void* from, int64_t bytes) {
  auto* target = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
  const auto before = static_cast<int64_t>(-reinterpret_cast<uintptr_t>(target) % 64);
  int64_t done = before < bytes ? before : bytes;
  std::memcpy(target, source, static_cast<size_t>(done));
  for (; done + 128 <= bytes; done += 128) {
    const auto* wide = reinterpret_cast<const __m256i*>(source + done);
    auto* wide_target = reinterpret_cast<__m256i*>(target + done);
    _mm_prefetch(reinterpret_cast<const char*>(source + done + 1024), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(source + done + 1088), _MM_HINT_T0);
    const __m256i a = _mm256_loadu_si256(wide), b = _mm256_loadu_si256(wide + 1);
    const __m256i c = _mm256_loadu_si256(wide + 2), d = _mm256_loadu_si256(wide + 3);
    _mm256_stream_si256(wide_target, a);
    _mm256_stream_si256(wide_target + 1, b);
    _mm256_stream_si256(wide_target + 2, c);
    _mm256_stream_si256(wide_target + 3, d);
  }
  std::memcpy(target + done, source + done, static_cast<size_t>(bytes - done));
}

void end_writes_past_cache() { _mm_sfence(); }

#else

bool is_written_past_cache(int64_t) { return false; }

void write_past_cache(void* to, const void* from, int64_t bytes) {
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

void end_writes_past_cache() {}

#endif

}  // namespace fsdp::util
