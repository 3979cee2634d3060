// Compiled for AVX-512 with bf16 and AMX: as in cpu/loops.inc, only types and intrinsics come from headers.

#include "kernels/cpu/tiles.h"

#ifdef FSDP_X86_LEVELS
#include <immintrin.h>

namespace fsdp::kernels::cpu {
namespace {

#include "kernels/cpu/tile_lanes.inc"

// Tile registers: 0 to 3 sums, [row block][column block]; 4, 5 left factor; 6, 7 right factor.
constexpr int64_t kTileRow = 64;  ///< bytes

/// Tiles of a factor; distances in elements of bf16 unless in bytes.
struct TileReader {
  const uint16_t* tile;
  int64_t bytes_between_rows;
  int64_t block, step;  ///< distances of neighbouring tiles
};

TileReader left_of(const TileProduct& product) {
  const int64_t step = product.parts * kTileElements;
  if (product.left_stride == kAsTiles) return {product.left, kTileRow, product.steps * step, step};
  return {product.left, 2 * product.left_stride, kTileSide * product.left_stride, kTileDepth};
}

TileReader right_of(const TileProduct& product) {
  const int64_t step = product.parts * kTileElements;
  if (product.right_stride == kAsTiles) return {product.right, kTileRow, product.steps * step, step};
  return {product.right, 4 * product.right_stride, 2 * kTileSide, kTileDepth * product.right_stride};
}

/// With one part, each tile is read once per pair of columns, so it bypasses the first-level cache, which
/// holds the columns.
template <int kParts, bool kTwoRows>
inline void load_left(const TileReader& left, int part) {
  const uint16_t* tile = left.tile + part * kTileElements;
  if constexpr (kParts == 1) {
    _tile_stream_loadd(4, tile, left.bytes_between_rows);
    if constexpr (kTwoRows) _tile_stream_loadd(5, tile + left.block, left.bytes_between_rows);
  } else {
    _tile_loadd(4, tile, left.bytes_between_rows);
    if constexpr (kTwoRows) _tile_loadd(5, tile + left.block, left.bytes_between_rows);
  }
}

template <bool kTwoColumns>
inline void load_right(const TileReader& right, int part) {
  const uint16_t* tile = right.tile + part * kTileElements;
  _tile_loadd(6, tile, right.bytes_between_rows);
  if constexpr (kTwoColumns) _tile_loadd(7, tile + right.block, right.bytes_between_rows);
}

template <bool kTwoRows, bool kTwoColumns>
inline void multiply_loaded() {
  _tile_dpbf16ps(0, 4, 6);
  if constexpr (kTwoColumns) _tile_dpbf16ps(1, 4, 7);
  if constexpr (kTwoRows) _tile_dpbf16ps(2, 5, 6);
  if constexpr (kTwoRows && kTwoColumns) _tile_dpbf16ps(3, 5, 7);
}

/// Prefetches the results of the next square while this one is multiplied.
struct Ahead {
  const char* row;
  int64_t bytes_between_rows, lines, rows, rows_a_step;

  inline void fetch() {
    const int64_t now = least(rows, rows_a_step);
    for (int64_t i = 0; i < now; ++i, row += bytes_between_rows) {
      for (int64_t line = 0; line < lines; ++line) __builtin_prefetch(row + 64 * line, 1);
    }
    rows -= now;
  }
};

/// Adds the products of up to two blocks of each factor to the sums. Small products come first where the
/// order is free, and consecutive products differ in one factor's part.
template <int kParts, bool kTwoRows, bool kTwoColumns>
inline void multiply_steps(TileReader left, TileReader right, int64_t steps, Ahead ahead) {
  const auto left_part = [&](int part) { load_left<kParts, kTwoRows>(left, part); };
  const auto right_part = [&](int part) { load_right<kTwoColumns>(right, part); };
  const auto multiply = [] { multiply_loaded<kTwoRows, kTwoColumns>(); };
  for (int64_t step = 0; step < steps; ++step) {
    ahead.fetch();
    left_part(0);
    if constexpr (kParts > 2) right_part(2), multiply();
    if constexpr (kParts > 1) right_part(1), multiply();
    if constexpr (kParts > 2) left_part(1), multiply();
    right_part(0);
    if constexpr (kParts == 2) multiply(), left_part(1);
    multiply();
    if constexpr (kParts > 2) {
      left_part(2), multiply();
      left_part(0), multiply();
    }
    left.tile += left.step;
    right.tile += right.step;
  }
}

/// One tile of results.
struct Place {
  const TileProduct& product;
  int64_t row, column;

  int64_t rows() const { return least(product.rows - row, kTileSide); }
  int64_t columns() const { return least(product.columns - column, kTileSide); }
  float* sums() const { return product.sums + row * product.sums_stride + column; }
  int64_t bytes_between_rows() const { return product.sums_stride * static_cast<int64_t>(sizeof(float)); }
  bool is_whole() const {
    return product.rounded != nullptr || (rows() == kTileSide && columns() == kTileSide);
  }
  bool adds() const { return product.adds && product.sums != nullptr; }
};

/// Stores a register's `values` to a partial tile.
void store_part(const Place& place, const float* values) {
  const __mmask16 lanes = first_lanes(place.columns());
  for (int64_t i = 0; i < place.rows(); ++i) {
    float* to = place.sums() + i * place.product.sums_stride;
    __m512 sum = _mm512_load_ps(values + i * kTileSide);
    if (place.adds()) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(lanes, to));
    _mm512_mask_storeu_ps(to, lanes, sum);
  }
}

inline __m512 widened(__m256i x) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

void store_rounded(const Place& place, const float* values) {
  const TileProduct& product = place.product;
  const __mmask16 lanes = first_lanes(place.columns());
  __m512 bias = _mm512_setzero_ps();
  if (product.bias != nullptr) bias = widened(_mm256_maskz_loadu_epi16(lanes, product.bias + place.column));
  uint16_t* to = product.rounded + place.row * product.rounded_stride + place.column;
  for (int64_t i = 0; i < place.rows(); ++i, to += product.rounded_stride) {
    __m512 sum = _mm512_add_ps(_mm512_load_ps(values + i * kTileSide), bias);
    if (product.adds_to_rounded) sum = _mm512_add_ps(sum, widened(_mm256_maskz_loadu_epi16(lanes, to)));
    const __m256i rounded = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(sum));
    _mm256_mask_storeu_epi16(to, lanes, rounded);
  }
}

// Macros, because the number of a register is part of the instruction.
#define FSDP_BEGIN_TILE(number, place)                                 \
  if ((place).adds() && (place).is_whole()) {                          \
    _tile_loadd(number, (place).sums(), (place).bytes_between_rows()); \
  } else {                                                             \
    _tile_zero(number);                                                \
  }
#define FSDP_END_TILE(number, place)                                                               \
  if ((place).product.rounded == nullptr && (place).is_whole()) {                                  \
    _tile_stored(number, (place).sums(), (place).bytes_between_rows());                            \
  } else {                                                                                         \
    alignas(64) float values[kTileSide * kTileSide];                                               \
    _tile_stored(number, values, kTileRow);                                                        \
    (place).product.rounded != nullptr ? store_rounded(place, values) : store_part(place, values); \
  }

Ahead ahead_of(const TileProduct& product, int64_t row, int64_t column) {
  row += 2 * kTileSide;
  if (row >= product.rows) {
    row = 0;
    column += 2 * kTileSide;
  }
  Ahead ahead{.row = nullptr, .bytes_between_rows = 0, .lines = 0, .rows = 0, .rows_a_step = 0};
  if (column >= product.columns) return ahead;
  const int64_t rows = least(product.rows - row, 2 * kTileSide);
  if (product.rounded != nullptr) {
    ahead.row = reinterpret_cast<const char*>(product.rounded + row * product.rounded_stride + column);
    ahead.bytes_between_rows = product.rounded_stride * 2;
    ahead.lines = 1;
  } else {
    ahead.row = reinterpret_cast<const char*>(product.sums + row * product.sums_stride + column);
    ahead.bytes_between_rows = product.sums_stride * 4;
    ahead.lines = 2;
  }
  ahead.rows = rows;
  ahead.rows_a_step = (rows + product.steps - 1) / product.steps;
  return ahead;
}

template <int kParts, bool kTwoRows, bool kTwoColumns>
void multiply_square(const TileProduct& product, int64_t row, int64_t column) {
  TileReader left = left_of(product), right = right_of(product);
  left.tile += row / kTileSide * left.block;
  right.tile += column / kTileSide * right.block;
  const Place places[2][2] = {
      {{product, row, column}, {product, row, column + kTileSide}},
      {{product, row + kTileSide, column}, {product, row + kTileSide, column + kTileSide}}};
  FSDP_BEGIN_TILE(0, places[0][0])
  if constexpr (kTwoColumns) {
    FSDP_BEGIN_TILE(1, places[0][1])
  }
  if constexpr (kTwoRows) {
    FSDP_BEGIN_TILE(2, places[1][0])
  }
  if constexpr (kTwoRows && kTwoColumns) {
    FSDP_BEGIN_TILE(3, places[1][1])
  }
  multiply_steps<kParts, kTwoRows, kTwoColumns>(left, right, product.steps, ahead_of(product, row, column));
  FSDP_END_TILE(0, places[0][0])
  if constexpr (kTwoColumns) {
    FSDP_END_TILE(1, places[0][1])
  }
  if constexpr (kTwoRows) {
    FSDP_END_TILE(2, places[1][0])
  }
  if constexpr (kTwoRows && kTwoColumns) {
    FSDP_END_TILE(3, places[1][1])
  }
}

#undef FSDP_BEGIN_TILE
#undef FSDP_END_TILE

/// Two blocks of columns stay in the first-level cache while all rows pass.
template <int kParts>
void multiply_all(const TileProduct& product) {
  constexpr int64_t kPair = 2 * kTileSide;
  for (int64_t column = 0; column < product.columns; column += kPair) {
    const bool two_columns = product.columns - column > kTileSide;
    for (int64_t row = 0; row < product.rows; row += kPair) {
      const bool two_rows = product.rows - row > kTileSide;
      if (two_rows && two_columns) {
        multiply_square<kParts, true, true>(product, row, column);
      } else if (two_rows) {
        multiply_square<kParts, true, false>(product, row, column);
      } else if (two_columns) {
        multiply_square<kParts, false, true>(product, row, column);
      } else {
        multiply_square<kParts, false, false>(product, row, column);
      }
    }
  }
}

/// The operand of LDTILECFG; see Intel's Software Developer's Manual, volume 2A.
struct alignas(64) TileConfiguration {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t bytes_of_a_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfiguration) == 64);

}  // namespace

void multiply_tiles(const TileProduct& product) {
  if (product.parts == 1) return multiply_all<1>(product);
  if (product.parts == 2) return multiply_all<2>(product);
  multiply_all<3>(product);
}

TileRegisters::TileRegisters() {
  // Static, because the compiler knows only that the instruction reads the first 8 bytes.
  static constexpr TileConfiguration kConfiguration;
  _tile_loadconfig(&kConfiguration);
}
TileRegisters::~TileRegisters() { _tile_release(); }

}  // namespace fsdp::kernels::cpu

#else

namespace fsdp::kernels::cpu {

// Not called, because util::has_matrix_unit() is false.
void multiply_tiles(const TileProduct&) {}
TileRegisters::TileRegisters() = default;
TileRegisters::~TileRegisters() = default;

}  // namespace fsdp::kernels::cpu

#endif
