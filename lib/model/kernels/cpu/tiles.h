#pragma once

// Products by a core's matrix unit, Intel's AMX (base/util/matrix_units.h detects it), which multiplies tiles in
// its own registers: 16 rows of 32 bf16 by 32 rows of 16, summed in fp32.
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

/// A factor in memory: `across` rows of a left factor, or columns of a right one, of `depth` elements each.
struct TileSource {
  const void* data = nullptr;
  Element element = Element::kFloat;
  int64_t stride = 0;  ///< elements between the contiguous runs
  bool depth_is_contiguous = true;
  int64_t across = 0, depth = 0;
};

inline constexpr int64_t kAsTiles = -1;  ///< instead of a stride: packed by pack_tiles()

enum class TileSide { kLeft, kRight };

/// Elements of a packed factor.
constexpr int64_t tiled_elements(int64_t across, int64_t depth, int64_t parts) {
  const int64_t blocks = (across + kTileSide - 1) / kTileSide, steps = (depth + kTileDepth - 1) / kTileDepth;
  return blocks * steps * parts * kTileElements;
}

/// to: [tiled_elements()], at a multiple of 64 bytes. bf16 has one part, fp32 two or three.
void pack_tiles(const TileSource& from, TileSide side, int parts, uint16_t* to);

/// left [rows, depth] times right [depth, columns], both packed; depth is `steps` of 32.
struct TileFactors {
  const uint16_t* left = nullptr;
  const uint16_t* right = nullptr;
  int64_t steps = 0;

  /// If not kAsTiles: strides of bf16 factors that are not packed as tiles and whose sizes are multiples of
  /// tiles, between rows of the left factor, in elements, and between pairs of rows of the right one, in
  /// pairs (Packing, cpu/loops.h).
  int64_t left_stride = kAsTiles, right_stride = kAsTiles;
};

/// Memory that the caller reads next.
struct Upcoming {
  const char* first = nullptr;
  int64_t bytes_between_rows = 0, bytes_of_a_row = 0, rows = 0;
};

/// The sum of products of `terms`.
struct TileProduct {
  const TileFactors* terms = nullptr;
  int64_t term_count = 0;
  int64_t rows = 0, columns = 0;
  int parts = 1;

  /// [rows, columns], rows `sums_stride` apart. With `rounded`: summands, in whole tiles, or null.
  float* sums = nullptr;
  int64_t sums_stride = 0;
  bool adds = false;  ///< to `sums`; else they are overwritten

  /// If not null: the result in bf16, [rows, columns], rows `rounded_stride` apart.
  uint16_t* rounded = nullptr;
  int64_t rounded_stride = 0;
  bool adds_to_rounded = false;
  uint16_t* strip =
      nullptr;  ///< of 32 rows of `rounded` that are not added to, contiguous, to be filled first
  const uint16_t* bias = nullptr;  ///< [columns], to be added before rounding; or null

  Upcoming upcoming = {};  ///< prefetched to the second-level cache while tiles are multiplied
};

/// Requires a TileRegisters on this thread.
void multiply_tiles(const TileProduct& product);

/// Configures this thread's tile registers for multiply_tiles(); exclusive while the object lives.
class TileRegisters {
 public:
  TileRegisters();
  ~TileRegisters();
  TileRegisters(const TileRegisters&) = delete;
  TileRegisters& operator=(const TileRegisters&) = delete;
};

}  // namespace fsdp::kernels::cpu
