// int8_products: whether products in int8 would pay in training on this CPU's matrix unit (Intel AMX).
//
// Times y = x W^T, x: [rows, depth] and y in bf16, W already packed, in three ways: in bf16; in int8 with one
// scale a row of x and one a column of W^T; and in int8 with a scale for each block of 128 of the depth,
// which is what training needs where there are outliers (Jetfire, arXiv 2403.12422; Fallback Quantization,
// arXiv 2503.08040). int8 includes the quantization of x. Everything stays in the second-level cache, which
// favours int8. Prints GFLOP/s and ratios; not a test.

#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <vector>

#include "base/util/matrix_units.h"

// g++ 12 takes the undefined operands within intrinsics for uninitialized ones in functions with a target
// attribute.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"

namespace fsdp {
namespace {

constexpr int64_t kSide = 16, kPair = 32, kRounds = 200;
constexpr int64_t kBlock = 128;  ///< of the depth, with a scale of its own

struct alignas(64) TileConfiguration {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes_of_a_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

struct Shape {
  int64_t rows, depth, columns;
};

template <typename T>
std::vector<T> zeros(int64_t count) {
  return std::vector<T>(static_cast<size_t>(count) + 64);
}
template <typename T>
T* aligned(std::vector<T>& memory) {
  return reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64);
}

/// Operands of one shape. W is packed: [columns / 16][depth / step][16 rows of 64 bytes].
struct Operands {
  explicit Operands(const Shape& shape)
      : shape(shape),
        x_memory(zeros<uint16_t>(shape.rows * shape.depth)),
        w_memory(zeros<uint16_t>(shape.columns * shape.depth)),
        y_memory(zeros<uint16_t>(shape.rows * shape.columns)),
        x8_memory(zeros<int8_t>(shape.rows * shape.depth)),
        w8_memory(zeros<int8_t>(shape.columns * shape.depth)),
        row_scales(static_cast<size_t>(shape.rows * (shape.depth / kBlock + 1)), 1.0F),
        column_scales(static_cast<size_t>(shape.columns * (shape.depth / kBlock + 1)), 0.01F) {
    // Random bits cost power, which lowers the clock, where zeros do not.
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < shape.rows * shape.depth; ++i) x()[i] = bf16(normal(random));
    for (int64_t i = 0; i < shape.columns * shape.depth; ++i) {
      const float value = normal(random);
      aligned(w_memory)[i] = bf16(value);
      aligned(w8_memory)[i] = static_cast<int8_t>(std::clamp(value * 40, -127.0F, 127.0F));
    }
  }

  static uint16_t bf16(float value) {
    uint32_t bits;
    __builtin_memcpy(&bits, &value, sizeof bits);
    return static_cast<uint16_t>(bits >> 16);
  }

  uint16_t* x() { return aligned(x_memory); }

  Shape shape;
  std::vector<uint16_t> x_memory, w_memory, y_memory;
  std::vector<int8_t> x8_memory, w8_memory;
  std::vector<float> row_scales, column_scales;
};

[[gnu::target("amx-tile")]] void configure() {
  static constexpr TileConfiguration kConfiguration;
  _tile_loadconfig(&kConfiguration);
}

// Registers 0 to 3: sums, [row block][column block]; 4, 5: x; 6, 7: W.
#define FSDP_ZERO_SUMS \
  _tile_zero(0);       \
  _tile_zero(1);       \
  _tile_zero(2);       \
  _tile_zero(3);
#define FSDP_LOAD(left, stride, right, right_block)  \
  _tile_loadd(4, left, stride);                      \
  _tile_loadd(5, (left) + kSide * (stride), stride); \
  _tile_stream_loadd(6, right, 64);                  \
  _tile_stream_loadd(7, (right) + (right_block), 64);
#define FSDP_STORE_SUMS(values)     \
  _tile_stored(0, (values)[0], 64); \
  _tile_stored(1, (values)[1], 64); \
  _tile_stored(2, (values)[2], 64); \
  _tile_stored(3, (values)[3], 64);

[[gnu::target("amx-tile,amx-bf16,avx512f,avx512bw,avx512vl,avx512bf16")]] void multiply_bf16(Operands& of) {
  const auto [rows, depth, columns] = of.shape;
  const int64_t steps = depth / 32, stride = 2 * depth;
  const auto* x = reinterpret_cast<const char*>(of.x());
  const auto* w = reinterpret_cast<const char*>(aligned(of.w_memory));
  uint16_t* y = aligned(of.y_memory);
  alignas(64) float values[4][kSide * kSide];
  for (int64_t row = 0; row < rows; row += kPair) {
    for (int64_t column = 0; column < columns; column += kPair) {
      FSDP_ZERO_SUMS
      const char *left = x + row * stride, *right = w + column / kSide * steps * 1024;
      for (int64_t step = 0; step < steps; ++step, left += 64, right += 1024) {
        FSDP_LOAD(left, stride, right, steps * 1024)
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
      FSDP_STORE_SUMS(values)
      for (int64_t i = 0; i < kPair; ++i) {
        const __m512 low = _mm512_load_ps(values[i / kSide * 2] + i % kSide * kSide);
        const __m512 high = _mm512_load_ps(values[i / kSide * 2 + 1] + i % kSide * kSide);
        _mm512_storeu_si512(y + (row + i) * columns + column,
                            reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
      }
    }
  }
}

/// x to int8, with a scale for each `block` of the depth.
[[gnu::target("avx512f,avx512bw,avx512vl")]] void quantize(Operands& of, int64_t block) {
  const auto [rows, depth, columns] = of.shape;
  float* scale = of.row_scales.data();
  for (int64_t row = 0; row < rows; ++row) {
    const uint16_t* x = of.x() + row * depth;
    int8_t* to = aligned(of.x8_memory) + row * depth;
    for (int64_t first = 0; first < depth; first += block) {
      const int64_t end = std::min(first + block, depth);
      const __m512i magnitude = _mm512_set1_epi16(0x7fff);
      __m512i most = _mm512_setzero_si512();  // bf16 without signs are ordered as integers are
      for (int64_t i = first; i < end; i += 32) {
        most = _mm512_max_epu16(most, _mm512_and_si512(magnitude, _mm512_loadu_si512(x + i)));
      }
      alignas(64) uint16_t lanes[32];
      _mm512_store_si512(lanes, most);
      const uint32_t bits = static_cast<uint32_t>(*std::max_element(lanes, lanes + 32)) << 16;
      float largest;
      __builtin_memcpy(&largest, &bits, sizeof largest);
      *scale++ = largest / 127;
      const __m512 factor = _mm512_set1_ps(largest > 0 ? 127 / largest : 0);
      for (int64_t i = first; i < end; i += 16) {
        const __m512i wide = _mm512_slli_epi32(
            _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i))), 16);
        const __m512i rounded = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_castsi512_ps(wide), factor));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), _mm512_cvtsepi32_epi8(rounded));
      }
    }
  }
}

[[gnu::always_inline, gnu::target("avx512f")]] inline __m512 scaled(const int32_t* sums, __m512 scale) {
  return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_load_si512(sums)), scale);
}

/// Sums are scaled and added up in fp32 after each `block` of the depth.
[[gnu::target("amx-tile,amx-int8,avx512f,avx512bw,avx512vl,avx512bf16")]] void multiply_int8(Operands& of,
                                                                                             int64_t block) {
  const auto [rows, depth, columns] = of.shape;
  const int64_t steps = depth / 64, steps_of_a_block = block / 64, blocks = (depth + block - 1) / block;
  const auto* x = reinterpret_cast<const char*>(aligned(of.x8_memory));
  const auto* w = reinterpret_cast<const char*>(aligned(of.w8_memory));
  uint16_t* y = aligned(of.y_memory);
  alignas(64) int32_t values[4][kSide * kSide];
  alignas(64) float sums[kPair][kPair];
  for (int64_t row = 0; row < rows; row += kPair) {
    for (int64_t column = 0; column < columns; column += kPair) {
      const char *left = x + row * depth, *right = w + column / kSide * steps * 1024;
      for (int64_t number = 0; number < blocks; ++number) {
        FSDP_ZERO_SUMS
        const int64_t now = std::min(steps_of_a_block, steps - number * steps_of_a_block);
        for (int64_t step = 0; step < now; ++step, left += 64, right += 1024) {
          FSDP_LOAD(left, depth, right, steps * 1024)
          _tile_dpbssd(0, 4, 6);
          _tile_dpbssd(1, 4, 7);
          _tile_dpbssd(2, 5, 6);
          _tile_dpbssd(3, 5, 7);
        }
        FSDP_STORE_SUMS(values)
        const float* of_columns = of.column_scales.data() + number * columns + column;
        const __m512 low_scale = _mm512_loadu_ps(of_columns),
                     high_scale = _mm512_loadu_ps(of_columns + kSide);
        for (int64_t i = 0; i < kPair; ++i) {
          const __m512 scale =
              _mm512_set1_ps(of.row_scales[static_cast<size_t>((row + i) * blocks + number)]);
          const int64_t first = i / kSide * 2, lane = i % kSide * kSide;
          __m512 low = scaled(values[first] + lane, _mm512_mul_ps(scale, low_scale));
          __m512 high = scaled(values[first + 1] + lane, _mm512_mul_ps(scale, high_scale));
          if (number > 0) {
            low = _mm512_add_ps(low, _mm512_load_ps(sums[i]));
            high = _mm512_add_ps(high, _mm512_load_ps(sums[i] + kSide));
          }
          if (number + 1 < blocks) {
            _mm512_store_ps(sums[i], low);
            _mm512_store_ps(sums[i] + kSide, high);
          } else {
            _mm512_storeu_si512(y + (row + i) * columns + column,
                                reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
          }
        }
      }
    }
  }
}

double best_seconds(const std::function<void()>& work) {
  double best = 1e9;
  for (int64_t round = 0; round < kRounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return best;
}

void compare(const Shape& shape) {
  Operands of(shape);
  configure();
  const double bf16 = best_seconds([&] { multiply_bf16(of); });
  const double whole = best_seconds([&] {
    quantize(of, shape.depth);
    multiply_int8(of, shape.depth);
  });
  const double whole_product = best_seconds([&] { multiply_int8(of, shape.depth); });
  const double blocks = best_seconds([&] {
    quantize(of, kBlock);
    multiply_int8(of, kBlock);
  });
  const double flops = 2.0 * static_cast<double>(shape.rows * shape.depth * shape.columns) * 1e-9;
  std::printf("| %ld x %ld x %ld | %.0f | %.0f, %.2f | %.0f, %.2f | %.0f, %.2f |\n",
              static_cast<long>(shape.rows), static_cast<long>(shape.depth), static_cast<long>(shape.columns),
              flops / bf16, flops / whole_product, bf16 / whole_product, flops / whole, bf16 / whole,
              flops / blocks, bf16 / blocks);
}

}  // namespace
}  // namespace fsdp

int main() {
  if (!fsdp::util::has_matrix_unit()) {
    std::fprintf(stderr, "int8_products: expected a CPU with a matrix unit (AMX), found none\n");
    return 1;
  }
  std::printf(
      "| rows x depth x columns | bf16, GFLOP/s | int8 without quantization, of bf16 | int8, a scale a row | "
      "int8, a scale a block of 128 |\n| --- | --- | --- | --- | --- |\n");
  for (const fsdp::Shape& shape : {fsdp::Shape{512, 576, 256},
                                   {512, 576, 576},
                                   {512, 576, 1024},
                                   {256, 1536, 256},
                                   {128, 2048, 256},
                                   {512, 512, 512}}) {
    fsdp::compare(shape);
  }
}
