#pragma once

// The arithmetic of one block of numbers in 8 or 4 bits, shared by the CPU and by tensor operations
// (link_codes.h).

#include <bit>
#include <cstdint>

#include "comm/options/link_type.h"

namespace fsdp::comm {

inline constexpr uint32_t kNanBits = 0x7fc00000U, kInfinityBits = 0x7f800000U;
/// Bits of 2^-100, below which a largest magnitude counts as 0.
inline constexpr uint32_t kLeastBits = static_cast<uint32_t>(127 - 100) << 23;
inline constexpr uint32_t kGolden = 0x9e3779b9U;
/// The factor that maps 24 random bits to [0, 1).
inline constexpr float kUnit = 1.0F / 16777216.0F;

/// The largest code.
constexpr float levels_of(LinkType type) { return type == LinkType::kInt8 ? 127.0F : 7.0F; }

/// The bits, as of a float32, of the scale of a block with this largest magnitude, given by its bits: the
/// least bfloat16 that is at least magnitude / levels.
inline uint32_t scale_of(uint32_t magnitude, float levels) {
  if (magnitude >= kInfinityBits) return kNanBits;
  if (magnitude < kLeastBits) return 0;
  const float quotient = std::bit_cast<float>(magnitude) / levels;
  return (std::bit_cast<uint32_t>(quotient) + 0xffffU) & 0xffff0000U;
}

/// A permutation of 32 bits without visible structure (C. Wellons's lowbias32).
constexpr uint32_t mixed(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7feb352dU;
  x = (x ^ (x >> 15)) * 0x846ca68bU;
  return x ^ (x >> 16);
}

/// The hash of a block is the sum over i of the bits of number i times hash_factor(i), modulo 2^32.
constexpr uint32_t hash_factor(uint32_t i) { return mixed(i + 1) | 1U; }

/// The key of a block's random numbers: number i of the block has mixed(key + i * kGolden).
constexpr uint32_t block_key(uint32_t seed, uint32_t block, uint32_t hash) {
  return mixed(hash ^ mixed(block * kGolden + seed));
}

}  // namespace fsdp::comm
