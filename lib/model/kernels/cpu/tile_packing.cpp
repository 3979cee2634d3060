// Compiled for AVX-512 with bf16 and AMX: as in cpu/loops.inc, only types and intrinsics come from headers.

#include <cstring>
#include <utility>

#include "model/kernels/cpu/tiles.h"

#ifdef FSDP_X86_LEVELS
#include <immintrin.h>

namespace fsdp::kernels::cpu {
namespace {

#include "model/kernels/cpu/mirrored_words.inc"
#include "model/kernels/cpu/tile_lanes.inc"

/// Clears the lower halves of words; an upper half is a bf16.
inline __m512i upper_halves(__m512 x) {
  return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(static_cast<int>(0xffff0000)));
}

/// Subtracts the next part from x and returns it in upper halves. The first part is truncated, so that it
/// does not overflow; further parts are rounded, so that the rest has either sign.
template <int kPart, int kParts>
inline __m512i take_part(__m512& x) {
  __m512i part;
  if constexpr (kPart == 0) {
    part = upper_halves(x);
  } else {
    part = upper_halves(
        _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000))));
  }
  if constexpr (kPart + 1 < kParts) x = _mm512_sub_ps(x, _mm512_castsi512_ps(part));
  return part;
}

/// Joins two vectors of upper halves; those of `low` become the lower halves.
inline __m512i joined(__m512i low, __m512i high) { return _mm512_or_si512(_mm512_srli_epi32(low, 16), high); }

/// Returns 32 elements of a run, those of `low` first, as 16 pairs.
inline __m512i in_a_row(__m512i low, __m512i high) {
  const __m512i odd = _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29,
                                       27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
  return _mm512_permutex2var_epi16(low, odd, high);
}

/// Computes kJoin(low, high) of each part of two vectors.
template <int kParts, __m512i (*kJoin)(__m512i, __m512i)>
inline void take_parts(__m512 low, __m512 high, Words (*squares)[kSide], int64_t i) {
  const __m512i low0 = take_part<0, kParts>(low), high0 = take_part<0, kParts>(high);
  squares[0][i] = reinterpret_cast<Words>(kJoin(low0, high0));
  if constexpr (kParts > 1) {
    const __m512i low1 = take_part<1, kParts>(low), high1 = take_part<1, kParts>(high);
    squares[1][i] = reinterpret_cast<Words>(kJoin(low1, high1));
  }
  if constexpr (kParts > 2) {
    const __m512i low2 = take_part<2, kParts>(low), high2 = take_part<2, kParts>(high);
    squares[2][i] = reinterpret_cast<Words>(kJoin(low2, high2));
  }
}

/// Packs 16 runs of the depth, from (`across`, `depth`) on, of 16 pairs each.
template <typename T, int kParts>
inline void read_runs(const TileSource& from, int64_t across, int64_t depth, Words (*squares)[kSide]) {
  const T* data = static_cast<const T*>(from.data) + across * from.stride + depth;
  const int64_t runs = least(from.across - across, kSide), count = from.depth - depth;
  for (int64_t i = 0; i < kSide; ++i, data += from.stride) {
    if (i >= runs) {
      for (int part = 0; part < kParts; ++part) squares[part][i] = Words{};
      continue;
    }
    if constexpr (sizeof(T) == 2) {
      const __mmask32 lanes = count >= kTileDepth ? ~__mmask32{0} : (__mmask32{1} << count) - 1;
      squares[0][i] = reinterpret_cast<Words>(_mm512_maskz_loadu_epi16(lanes, data));
    } else {
      take_parts<kParts, in_a_row>(_mm512_maskz_loadu_ps(first_lanes(count), data),
                                   _mm512_maskz_loadu_ps(first_lanes(count - kSide), data + kSide), squares,
                                   i);
    }
  }
}

/// Packs 16 pairs of rows, 16 elements of each.
template <typename T, int kParts>
inline void read_pairs(const TileSource& from, int64_t across, int64_t depth, Words (*squares)[kSide]) {
  const T* data = static_cast<const T*>(from.data) + depth * from.stride + across;
  const __mmask16 lanes = first_lanes(from.across - across);
  const int64_t rows = from.depth - depth;
  for (int64_t i = 0; i < kSide; ++i, data += 2 * from.stride) {
    const __mmask16 first = 2 * i < rows ? lanes : 0, second = 2 * i + 1 < rows ? lanes : 0;
    const T* next = second != 0 ? data + from.stride : data;
    if constexpr (sizeof(T) == 2) {
      const __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first, data));
      const __m512i high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(second, next));
      squares[0][i] = reinterpret_cast<Words>(_mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
    } else {
      take_parts<kParts, joined>(_mm512_maskz_loadu_ps(first, data), _mm512_maskz_loadu_ps(second, next),
                                 squares, i);
    }
  }
}

/// Packs 16 pairs of rows in bf16, two times 16 elements of each, which are whole lines of memory.
inline void read_wide_pairs(const TileSource& from, int64_t across, int64_t depth, Words* low, Words* high) {
  const __m512i first_half = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8,
                                              39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  const __m512i second_half = _mm512_add_epi16(first_half, _mm512_set1_epi16(16));
  const uint16_t* data = static_cast<const uint16_t*>(from.data) + depth * from.stride + across;
  const int64_t rows = from.depth - depth;
  for (int64_t i = 0; i < kSide; ++i, data += 2 * from.stride) {
    const __m512i one = _mm512_maskz_loadu_epi16(2 * i < rows ? ~__mmask32{0} : 0, data);
    const __m512i next = _mm512_maskz_loadu_epi16(2 * i + 1 < rows ? ~__mmask32{0} : 0, data + from.stride);
    low[i] = reinterpret_cast<Words>(_mm512_permutex2var_epi16(one, first_half, next));
    high[i] = reinterpret_cast<Words>(_mm512_permutex2var_epi16(one, second_half, next));
  }
}

inline void store_square(Words* square, bool mirrors, uint16_t* tile) {
  if (mirrors) {
    store_mirrored(square, reinterpret_cast<uint32_t*>(tile), kSide);
  } else {
    for (int64_t i = 0; i < kSide; ++i) std::memcpy(tile + i * kTileDepth, &square[i], sizeof(Words));
  }
}

template <typename T, int kParts>
void pack(const TileSource& from, TileSide side, uint16_t* to) {
  const int64_t steps = (from.depth + kTileDepth - 1) / kTileDepth;
  const bool mirrors = from.depth_is_contiguous != (side == TileSide::kLeft);
  const auto pack_tile = [&](int64_t block, int64_t step) __attribute__((always_inline)) {
    Words squares[kParts][kSide];
    if (from.depth_is_contiguous) {
      read_runs<T, kParts>(from, block * kTileSide, step * kTileDepth, squares);
    } else {
      read_pairs<T, kParts>(from, block * kTileSide, step * kTileDepth, squares);
    }
    uint16_t* tile = to + (block * steps + step) * kParts * kTileElements;
    for (int part = 0; part < kParts; ++part)
      store_square(squares[part], mirrors, tile + part * kTileElements);
  };
  const int64_t blocks = (from.across + kTileSide - 1) / kTileSide;
  // The loops follow the source's memory order.
  if (from.depth_is_contiguous) {
    for (int64_t block = 0; block < blocks; ++block) {
      for (int64_t step = 0; step < steps; ++step) pack_tile(block, step);
    }
  } else {
    const int64_t wide_blocks = sizeof(T) == 2 ? from.across / (2 * kTileSide) * 2 : 0;
    for (int64_t step = 0; step < steps; ++step) {
      for (int64_t block = 0; block < wide_blocks; block += 2) {
        Words low[kSide], high[kSide];
        read_wide_pairs(from, block * kTileSide, step * kTileDepth, low, high);
        uint16_t* tile = to + (block * steps + step) * kTileElements;
        store_square(low, mirrors, tile);
        store_square(high, mirrors, tile + steps * kTileElements);
      }
      for (int64_t block = wide_blocks; block < blocks; ++block) pack_tile(block, step);
    }
  }
}

}  // namespace

void pack_tiles(const TileSource& from, TileSide side, int parts, uint16_t* to) {
  if (from.element == Element::kBFloat16) return pack<uint16_t, 1>(from, side, to);
  if (parts == 2) return pack<float, 2>(from, side, to);
  pack<float, 3>(from, side, to);
}

}  // namespace fsdp::kernels::cpu

#else

namespace fsdp::kernels::cpu {

// Not called, because util::has_matrix_unit() is false.
void pack_tiles(const TileSource&, TileSide, int, uint16_t*) {}

}  // namespace fsdp::kernels::cpu

#endif
