#pragma once

// Hash functions that give the same values on every machine and in every release: initial weights and the
// sample order are derived from them.

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace fsdp::util {

/// The finaliser of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA
/// 2014).
constexpr uint64_t mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

/// FNV-1a over `text` with a mixed seed, mixed again at the end.
constexpr uint64_t hash_of(uint64_t seed, std::string_view text) {
  uint64_t h = mix64(seed) ^ 0xcbf29ce484222325ULL;
  for (char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return mix64(h);
}

/// XXH3 of 64 bits with seed 0: several GB/s, for large data.
uint64_t xxh3_64(const void* data, size_t bytes);

/// CRC-32C (Castagnoli; RFC 3720, appendix B.4).
uint32_t crc32c(std::string_view bytes);

}  // namespace fsdp::util
