// Compiled for AVX-512 with bf16 and AMX: as in cpu/loops.inc, only types and intrinsics come from headers.

#include "model/kernels/cpu/tiles.h"

#ifdef FSDP_X86_LEVELS
#include <immintrin.h>

namespace fsdp::kernels::cpu {
namespace {

#include "model/kernels/cpu/tile_lanes.inc"

// Tile registers: 0 to 3 sums, [row block][column block]; 4, 5 left factor; 6, 7 right factor.
constexpr int64_t kTileRow = 64;  ///< bytes of a row of a tile
constexpr int64_t kPair = 2 * kTileSide;

/// Position and distances of a factor's tiles, in elements of bf16 unless in bytes.
struct TileReader {
  const uint16_t* tile;
  int64_t bytes_between_rows;
  int64_t block, step;  ///< distances of neighbouring tiles
};

TileReader left_of(const TileFactors& factors, int parts) {
  const int64_t step = parts * kTileElements;
  if (factors.left_stride == kAsTiles) return {factors.left, kTileRow, factors.steps * step, step};
  return {factors.left, 2 * factors.left_stride, kTileSide * factors.left_stride, kTileDepth};
}

TileReader right_of(const TileFactors& factors, int parts) {
  const int64_t step = parts * kTileElements;
  if (factors.right_stride == kAsTiles) return {factors.right, kTileRow, factors.steps * step, step};
  return {factors.right, 4 * factors.right_stride, 2 * kTileSide, kTileDepth * factors.right_stride};
}

/// The factor whose blocks pass while the other factor's blocks stay in the first-level cache.
enum class Passing { kRows, kColumns };

// With one part, each tile of the passing factor is read once, so it bypasses the first-level cache.
#define FSDP_LOAD_TILE(number, tile, bytes)  \
  if constexpr (kBypasses) {                 \
    _tile_stream_loadd(number, tile, bytes); \
  } else {                                   \
    _tile_loadd(number, tile, bytes);        \
  }

template <bool kBypasses, bool kTwoRows>
inline void load_left(const TileReader& left, int part) {
  const uint16_t* tile = left.tile + part * kTileElements;
  FSDP_LOAD_TILE(4, tile, left.bytes_between_rows)
  if constexpr (kTwoRows) {
    FSDP_LOAD_TILE(5, tile + left.block, left.bytes_between_rows)
  }
}

template <bool kBypasses, bool kTwoColumns>
inline void load_right(const TileReader& right, int part) {
  const uint16_t* tile = right.tile + part * kTileElements;
  FSDP_LOAD_TILE(6, tile, right.bytes_between_rows)
  if constexpr (kTwoColumns) {
    FSDP_LOAD_TILE(7, tile + right.block, right.bytes_between_rows)
  }
}

#undef FSDP_LOAD_TILE

template <bool kTwoRows, bool kTwoColumns>
inline void multiply_loaded() {
  _tile_dpbf16ps(0, 4, 6);
  if constexpr (kTwoColumns) _tile_dpbf16ps(1, 4, 7);
  if constexpr (kTwoRows) _tile_dpbf16ps(2, 5, 6);
  if constexpr (kTwoRows && kTwoColumns) _tile_dpbf16ps(3, 5, 7);
}

/// Lines of memory to prefetch, some at each step.
template <int kWrites, int kLocality>
struct Ahead {
  const char* row = nullptr;
  int64_t bytes_between_rows = 0, lines_of_a_row = 0, rows = 0, lines_a_step = 0, line = 0;

  inline void fetch() {
    for (int64_t i = 0; i < lines_a_step && rows > 0; ++i) {
      __builtin_prefetch(row + 64 * line, kWrites, kLocality);
      if (++line < lines_of_a_row) continue;
      line = 0;
      row += bytes_between_rows;
      --rows;
    }
  }
};
using AheadToWrite = Ahead<1, 3>;
using AheadToRead = Ahead<0, 2>;  ///< prefetches to the second-level cache

struct Prefetched {
  AheadToWrite results;        ///< lines of the next square
  AheadToRead rows, upcoming;  ///< lines of the next rows of the left factor, and of Upcoming
};

/// Adds the products of up to two blocks of each factor to the sums. Small products come first if the order
/// is free, and consecutive products differ in one factor's part.
template <int kParts, Passing kPassing, bool kTwoRows, bool kTwoColumns>
inline void multiply_steps(TileReader left, TileReader right, int64_t steps, Prefetched& ahead) {
  const auto left_part = [&](int part) {
    load_left<kParts == 1 && kPassing == Passing::kRows, kTwoRows>(left, part);
  };
  const auto right_part = [&](int part) {
    load_right<kParts == 1 && kPassing == Passing::kColumns, kTwoColumns>(right, part);
  };
  const auto multiply = [] { multiply_loaded<kTwoRows, kTwoColumns>(); };
  for (int64_t step = 0; step < steps; ++step) {
    ahead.results.fetch();
    ahead.rows.fetch();
    ahead.upcoming.fetch();
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
struct TilePlace {
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
void store_part(const TilePlace& place, const float* values) {
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

int64_t strip_stride(const TileProduct& product) { return (product.columns + kPair - 1) / kPair * kPair; }

/// Copies the strip to `row` and the next rows, so that memory is written by rows, not by 64 bytes.
void copy_strip(const TileProduct& product, int64_t row) {
  const uint16_t* from = product.strip;
  uint16_t* to = product.rounded + row * product.rounded_stride;
  const int64_t rows = least(product.rows - row, kPair), stride = strip_stride(product);
  for (int64_t i = 0; i < rows; ++i, from += stride, to += product.rounded_stride) {
    for (int64_t column = 0; column < product.columns; column += kPair) {
      const int64_t columns = least(product.columns - column, kPair);
      const __mmask32 lanes = static_cast<__mmask32>((uint64_t{1} << columns) - 1);
      _mm512_mask_storeu_epi16(to + column, lanes, _mm512_maskz_loadu_epi16(lanes, from + column));
    }
  }
}

/// Stores two registers' `left` and `right` values side by side, rounded. One register has up to 16 columns.
void store_rounded(const TilePlace& place, const float* left, const float* right) {
  const TileProduct& product = place.product;
  const int64_t columns = least(product.columns - place.column, right == nullptr ? kTileSide : kPair);
  const __mmask32 lanes = static_cast<__mmask32>((uint64_t{1} << columns) - 1);
  const __mmask16 low = static_cast<__mmask16>(lanes), high = static_cast<__mmask16>(lanes >> kTileSide);
  __m512 low_bias = _mm512_setzero_ps(), high_bias = _mm512_setzero_ps();
  if (product.bias != nullptr) {
    low_bias = widened(_mm256_maskz_loadu_epi16(low, product.bias + place.column));
    high_bias = widened(_mm256_maskz_loadu_epi16(high, product.bias + place.column + kTileSide));
  }
  const float* second = right == nullptr ? left : right;  // `high` is empty without `right`
  const bool fills = product.strip != nullptr;
  const int64_t stride = fills ? strip_stride(product) : product.rounded_stride;
  uint16_t* to = fills ? product.strip + place.row % kPair * stride : product.rounded + place.row * stride;
  to += place.column;
  for (int64_t i = 0; i < place.rows(); ++i, to += stride) {
    __m512 low_sum = _mm512_add_ps(_mm512_load_ps(left + i * kTileSide), low_bias);
    __m512 high_sum = _mm512_add_ps(_mm512_load_ps(second + i * kTileSide), high_bias);
    if (product.adds_to_rounded) {
      low_sum = _mm512_add_ps(low_sum, widened(_mm256_maskz_loadu_epi16(low, to)));
      high_sum = _mm512_add_ps(high_sum, widened(_mm256_maskz_loadu_epi16(high, to + kTileSide)));
    }
    const __m512i rounded = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high_sum, low_sum));
    _mm512_mask_storeu_epi16(to, lanes, rounded);
  }
}

// Macros, because the number of a register is part of the instruction.
#define FSDP_BEGIN_TILE(number, place)                                 \
  if ((place).adds() && (place).is_whole()) {                          \
    _tile_loadd(number, (place).sums(), (place).bytes_between_rows()); \
  } else {                                                             \
    _tile_zero(number);                                                \
  }
#define FSDP_END_TILE(number, place)                                    \
  if ((place).is_whole()) {                                             \
    _tile_stored(number, (place).sums(), (place).bytes_between_rows()); \
  } else {                                                              \
    alignas(64) float values[kTileSide * kTileSide];                    \
    _tile_stored(number, values, kTileRow);                             \
    store_part(place, values);                                          \
  }
#define FSDP_END_ROUNDED(number, next, two_columns, place)                       \
  {                                                                              \
    alignas(64) float left[kTileSide * kTileSide], right[kTileSide * kTileSide]; \
    _tile_stored(number, left, kTileRow);                                        \
    if constexpr (two_columns) _tile_stored(next, right, kTileRow);              \
    store_rounded(place, left, two_columns ? right : nullptr);                   \
  }

/// Returns the results of the square at (row, column), of which a share is prefetched at each of `steps`.
AheadToWrite results_of(const TileProduct& product, int64_t row, int64_t column, int64_t steps) {
  AheadToWrite ahead;
  ahead.rows = least(product.rows - row, 2 * kTileSide);
  if (product.rounded != nullptr) {
    ahead.row = reinterpret_cast<const char*>(product.rounded + row * product.rounded_stride + column);
    ahead.bytes_between_rows = product.rounded_stride * 2;
    ahead.lines_of_a_row = 1;
  } else {
    ahead.row = reinterpret_cast<const char*>(product.sums + row * product.sums_stride + column);
    ahead.bytes_between_rows = product.sums_stride * 4;
    ahead.lines_of_a_row = 2;
  }
  ahead.lines_a_step = (ahead.rows * ahead.lines_of_a_row + steps - 1) / (steps > 0 ? steps : 1);
  return ahead;
}

/// Returns `upcoming`, of which a share is prefetched at each step of all squares.
AheadToRead ahead_of(const Upcoming& upcoming, int64_t steps) {
  AheadToRead ahead;
  ahead.row = upcoming.first;
  ahead.bytes_between_rows = upcoming.bytes_between_rows;
  ahead.lines_of_a_row = (upcoming.bytes_of_a_row + 63) / 64;
  ahead.rows = upcoming.rows;
  ahead.lines_a_step = (ahead.lines_of_a_row * ahead.rows + steps - 1) / (steps > 0 ? steps : 1);
  return ahead;
}

/// A square of two by two tiles, which are multiplied in the order of Passing.
template <Passing kPassing>
struct Square {
  const TileProduct& product;
  int64_t row = 0, column = 0;

  bool is_over() const { return row >= product.rows || column >= product.columns; }
  void advance() {
    if constexpr (kPassing == Passing::kColumns) {
      column += kPair;
      if (column >= product.columns) column = 0, row += kPair;
    } else {
      row += kPair;
      if (row >= product.rows) row = 0, column += kPair;
    }
  }
};

template <int kParts, Passing kPassing, bool kTwoRows, bool kTwoColumns>
void multiply_square(const Square<kPassing>& square, int64_t steps, Prefetched& ahead) {
  const TileProduct& product = square.product;
  const int64_t row = square.row, column = square.column;
  const TilePlace places[2][2] = {
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
  Square<kPassing> next = square;
  next.advance();
  ahead.results = {};
  if (product.strip == nullptr && !next.is_over()) {
    ahead.results = results_of(product, next.row, next.column, steps);
  }
  for (int64_t term = 0; term < product.term_count; ++term) {
    TileReader left = left_of(product.terms[term], kParts), right = right_of(product.terms[term], kParts);
    left.tile += row / kTileSide * left.block;
    right.tile += column / kTileSide * right.block;
    multiply_steps<kParts, kPassing, kTwoRows, kTwoColumns>(left, right, product.terms[term].steps, ahead);
  }
  if (product.rounded != nullptr) {
    FSDP_END_ROUNDED(0, 1, kTwoColumns, places[0][0])
    if constexpr (kTwoRows) {
      FSDP_END_ROUNDED(2, 3, kTwoColumns, places[1][0])
    }
    return;
  }
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
#undef FSDP_END_ROUNDED

/// Returns the rows of the first term's left factor that follow those from `row` on, if they are not packed.
AheadToRead rows_after(const TileProduct& product, int64_t row, int64_t steps) {
  const int64_t rows = least(product.rows - row - kPair, kPair);
  if (product.term_count == 0) return {};
  const TileFactors& factors = product.terms[0];
  if (factors.left_stride == kAsTiles || rows <= 0) return {};
  return ahead_of({.first = reinterpret_cast<const char*>(factors.left + (row + kPair) * factors.left_stride),
                   .bytes_between_rows = 2 * factors.left_stride,
                   .bytes_of_a_row = factors.steps * kTileRow,
                   .rows = rows},
                  steps);
}

template <int kParts, Passing kPassing>
void multiply_all(const TileProduct& product) {
  int64_t steps = 0;  // 0 only if all terms of a slice lack a factor
  for (int64_t term = 0; term < product.term_count; ++term) steps += product.terms[term].steps;
  const int64_t across = (product.columns + kPair - 1) / kPair, down = (product.rows + kPair - 1) / kPair;
  Prefetched ahead;
  ahead.upcoming = ahead_of(product.upcoming, across * down * steps);
  for (Square<kPassing> square{product}; !square.is_over();) {
    if (kPassing == Passing::kColumns && square.column == 0) {
      ahead.rows = rows_after(product, square.row, across * steps);
    }
    const bool two_rows = product.rows - square.row > kTileSide;
    const bool two_columns = product.columns - square.column > kTileSide;
    if (two_rows && two_columns) {
      multiply_square<kParts, kPassing, true, true>(square, steps, ahead);
    } else if (two_rows) {
      multiply_square<kParts, kPassing, true, false>(square, steps, ahead);
    } else if (two_columns) {
      multiply_square<kParts, kPassing, false, true>(square, steps, ahead);
    } else {
      multiply_square<kParts, kPassing, false, false>(square, steps, ahead);
    }
    const int64_t row = square.row;
    square.advance();
    if (product.strip != nullptr && square.row != row) copy_strip(product, row);
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
  if (product.parts == 2) return multiply_all<2, Passing::kRows>(product);
  if (product.parts == 3) return multiply_all<3, Passing::kRows>(product);
  // Columns pass, so that results in bf16 are written along their rows.
  if (product.rounded != nullptr) return multiply_all<1, Passing::kColumns>(product);
  multiply_all<1, Passing::kRows>(product);
}

TileRegisters::TileRegisters() {
  // The object is static, because the compiler assumes that the instruction reads only the first 8 bytes.
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
