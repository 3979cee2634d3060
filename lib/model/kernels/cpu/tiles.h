#pragma once

// Products by a core's matrix unit, Intel's AMX (base/util/matrix_units.h detects it), which multiplies tiles
// in its own registers: 16 rows of 32 bf16 by 32 rows of 16, summed in fp32.
//
// A packed factor is an array of tiles of 1 KiB, [blocks of 16][steps of 32][parts], padded with zeros. A
// tile of the left factor is [16 rows, 32], one of the right factor [16 pairs of rows, 16, 2].
//
// A number in fp32 is the sum of up to three parts in bf16, with 8 of its 24 bits each. Of the nine products
// of two such sums the six largest are computed; the others are below 2^-22 of the product (G. Henry, P.
// Tang, A. Heinecke: Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision
// Computations, 2019, section III). With two parts, there are three products, and 16 bits. The unit treats
// subnormal numbers as zero; an infinite factor gives NaN.

#include <cstdint>

#include "model/kernels/rows.h"

namespace fsdp::kernels::cpu {

using kernels::Element;

inline constexpr int64_t kTileSide = 16;
inline constexpr int64_t kTileDepth = 32;
inline constexpr int64_t kTileElements = kTileSide * kTileDepth;

/// A factor in memory: `across` rows of a left factor, or columns of a right one, with `depth` elements each.
struct TileSource {
  const void* data = nullptr;
  Element element = Element::kFloat;
  int64_t stride = 0;  ///< elements between the contiguous runs
  bool depth_is_contiguous = true;
  int64_t across = 0, depth = 0;
};

inline constexpr int64_t kAsTiles = -1;  ///< value of a stride for factors packed by pack_tiles()

enum class TileSide { kLeft, kRight };

/// Number of elements of a packed factor.
constexpr int64_t tiled_elements(int64_t across, int64_t depth, int64_t parts) {
  const int64_t blocks = (across + kTileSide - 1) / kTileSide, steps = (depth + kTileDepth - 1) / kTileDepth;
  return blocks * steps * parts * kTileElements;
}

/// Packs a factor. to: [tiled_elements()], at a multiple of 64 bytes. bf16 has one part, fp32 two or three.
void pack_tiles(const TileSource& from, TileSide side, int parts, uint16_t* to);

/// Factors left, [rows, depth], and right, [depth, columns], both packed. depth is `steps` of 32.
struct TileFactors {
  const uint16_t* left = nullptr;
  const uint16_t* right = nullptr;
  int64_t steps = 0;

  /// Strides of bf16 factors that are not packed as tiles and whose sizes are multiples of tiles; otherwise
  /// kAsTiles. For the left factor, elements between rows; for the right one, pairs between pairs of rows
  /// (Packing, cpu/loops.h).
  int64_t left_stride = kAsTiles, right_stride = kAsTiles;
};

/// Memory that the caller will read next.
struct Upcoming {
  const char* first = nullptr;
  int64_t bytes_between_rows = 0, bytes_of_a_row = 0, rows = 0;
};

/// A sum of products of `terms`, and its destination.
struct TileProduct {
  const TileFactors* terms = nullptr;
  int64_t term_count = 0;
  int64_t rows = 0, columns = 0;
  int parts = 1;

  /// Sums, [rows, columns], rows `sums_stride` apart. With `rounded`: summands, in whole tiles, or null.
  float* sums = nullptr;
  int64_t sums_stride = 0;
  bool adds = false;  ///< whether to add to `sums`; otherwise they are overwritten

  /// The result in bf16, [rows, columns], rows `rounded_stride` apart; or null.
  uint16_t* rounded = nullptr;
  int64_t rounded_stride = 0;
  bool adds_to_rounded = false;
  uint16_t* strip =
      nullptr;  ///< buffer of 32 rows of `rounded` that are not added to, contiguous, filled first
  const uint16_t* bias = nullptr;  ///< [columns], added before rounding; or null

  Upcoming upcoming = {};  ///< memory to prefetch to the second-level cache while tiles are multiplied
};

/// Computes a product. Requires: a TileRegisters exists on this thread.
void multiply_tiles(const TileProduct& product);

/// Configures this thread's tile registers for multiply_tiles() in its lifetime. One object per thread.
class TileRegisters {
 public:
  TileRegisters();
  ~TileRegisters();
  TileRegisters(const TileRegisters&) = delete;
  TileRegisters& operator=(const TileRegisters&) = delete;
};

}  // namespace fsdp::kernels::cpu
