#pragma once

// Rounds a matrix to 8 bits (model/kernels/float8.h): in its own order, transposed, or both, reading it once.

#include <cstring>
#include <type_traits>

#include "model/kernels/cuda/kernels.h"
#include "model/kernels/cuda/packs.cuh"

namespace fsdp::kernels::cuda {

/// A block processes a square of kSide x kSide elements, of which a thread reads kRead neighbours of a row at
/// once. The numbers of rows and columns are multiples of 16, so all packs are whole.
template <typename To, bool kByRows, int kRead>
struct Float8Kernel {
  using Arguments = Float8Rounding;
  static constexpr int kThreads = 256;
  static constexpr int kSide = 64;
  static constexpr int kWritten = kPackOf<To>;         ///< neighbours in a column that are written at once
  static constexpr int kThreadsOfRow = kSide / kRead;  ///< threads that read a row
  static constexpr int kThreadsOfColumn = kSide / kWritten;  ///< threads that write a column as a row
  static constexpr int kRowsAtOnce = kThreads / kThreadsOfRow;
  static constexpr int kAtOnce = kRead % 4 == 0 ? 4 : 1;  ///< elements stored to shared memory at once
  static_assert(kThreads == kSide * kThreadsOfColumn && kSide % kRowsAtOnce == 0);

  struct Shared {
    alignas(4) uint8_t bits[kSide][kSide + 4];  ///< rows begin at different banks
  };

  FSDP_DEVICE static void run(const Arguments& a, Shared& shared) {
    const int64_t squares_of_row = (a.width + kSide - 1) / kSide;
    const int64_t square_row = block() / squares_of_row;
    const int64_t first_row = square_row * kSide,
                  first_column = (block() - square_row * squares_of_row) * kSide;
    const int column = thread() % kThreadsOfRow * kRead;
    float scale = 0;
    Scales of_columns;
    if constexpr (kByRows) {
      write_inverses(a, first_row, first_column);
      if (a.transposed != nullptr && first_column + column < a.width) {
        FSDP_UNROLL
        for (int k = 0; k < kRead; ++k) {
          of_columns.at[k] = power_of_two(a.largest_of_columns[first_column + column + k]);
        }
      }
    } else {
      scale = scale_for(*a.largest);
      if (block() == 0 && thread() == 0) *a.inverse_scale = 1 / scale;
    }

    FSDP_UNROLL
    for (int i = 0; i < kSide / kRowsAtOnce; ++i) {
      const int row = i * kRowsAtOnce + thread() / kThreadsOfRow;
      if (first_row + row >= a.rows || first_column + column >= a.width) continue;
      const int64_t at = (first_row + row) * a.width + first_column + column;
      const auto pack = load_pack<kRead>(static_cast<const c10::BFloat16*>(a.x) + at);
      if constexpr (kByRows) {
        if (a.values != nullptr) {
          const float of_row = power_of_two(a.largest[first_row + row]);
          store_pack(static_cast<To*>(a.values) + at, rounded(pack, [&](int) { return of_row; }));
        }
        if (a.transposed != nullptr) {
          share(shared, row, column, rounded(pack, [&](int k) { return of_columns.at[k]; }));
        }
      } else {
        const auto bits = rounded(pack, [&](int) { return scale; });
        share(shared, row, column, bits);
        if (a.values != nullptr) store_pack(static_cast<To*>(a.values) + at, bits);
      }
    }
    if (a.transposed == nullptr) return;
    sync_block();

    const int written_column = thread() / kThreadsOfColumn, row = thread() % kThreadsOfColumn * kWritten;
    if (first_row + row >= a.rows || first_column + written_column >= a.width) return;
    Pack<To, kWritten> bits;
    FSDP_UNROLL
    for (int k = 0; k < kWritten; ++k) bits.at[k].x = shared.bits[row + k][written_column];
    store_pack(static_cast<To*>(a.transposed) + (first_column + written_column) * a.rows + first_row + row,
               bits);
  }

 private:
  static constexpr bool kE5m2 = std::is_same_v<To, c10::Float8_e5m2>;

  struct Scales {
    float at[kByRows ? kRead : 1];
  };

  FSDP_DEVICE static float scale_for(float largest) {
    constexpr float kMost = kLargestNumber<To>, kLeast = kLeastMagnitude;
    return kMost / (largest < kLeast ? kLeast : largest);  // NaN for NaN
  }

  /// Returns the power of 2 below scale_for(), without its division; NaN if the magnitude is not finite.
  FSDP_DEVICE static float power_of_two(float largest) {
    constexpr float kLeast = kLeastMagnitude;
    constexpr uint32_t kOne = 127, kMantissa = 0x7FFFFF;
    const float magnitude = largest < kLeast ? kLeast : largest;
    uint32_t bits = 0;
    std::memcpy(&bits, &magnitude, sizeof(bits));
    // The largest number of either type is 1.75 times a power of 2.
    constexpr uint32_t kExponent = std::is_same_v<To, c10::Float8_e5m2> ? 15 : 8, kMost = 0x600000;
    const uint32_t exponent = 2 * kOne + kExponent - (bits >> 23) - ((bits & kMantissa) > kMost ? 1 : 0);
    return bits >> 23 < 255 ? of_bits(exponent << 23) : not_a_number();
  }
  /// The inverse of a power of 2.
  FSDP_DEVICE static float inverse_of(float power) {
    uint32_t bits = 0;
    std::memcpy(&bits, &power, sizeof(bits));
    return power > 0 ? of_bits((254U << 23) - bits) : power;
  }
  FSDP_DEVICE static float of_bits(uint32_t bits) {
    float x = 0;
    std::memcpy(&x, &bits, sizeof(x));
    return x;
  }

  /// The blocks of the first column of squares write the scales of the rows, those of the first row the
  /// others.
  FSDP_DEVICE static void write_inverses(const Arguments& a, int64_t first_row, int64_t first_column) {
    const int64_t row = first_row + thread(), column = first_column + thread();
    if (thread() >= kSide) return;
    if (a.values != nullptr && first_column == 0 && row < a.rows) {
      a.inverse_scale[row] = inverse_of(power_of_two(a.largest[row]));
    }
    if (a.transposed != nullptr && first_row == 0 && column < a.width) {
      a.inverse_scale_of_columns[column] = inverse_of(power_of_two(a.largest_of_columns[column]));
    }
  }

  FSDP_DEVICE static void share(Shared& shared, int row, int column, const Pack<To, kRead>& bits) {
    FSDP_UNROLL
    for (int k = 0; k < kRead; k += kAtOnce) {
      std::memcpy(&shared.bits[row][column + k], &bits.at[k], kAtOnce);
    }
  }

  /// scale_of: index in the pack -> scale
  template <typename ScaleOf>
  FSDP_DEVICE static Pack<To, kRead> rounded(const Pack<c10::BFloat16, kRead>& pack, ScaleOf scale_of) {
    Pack<To, kRead> bits;
    FSDP_UNROLL
    for (int k = 0; k < kRead; ++k) {
      const float value = to_float(pack.at[k]) * scale_of(k);
      if constexpr (kRead % 2 != 0 || !has_float8_rounding()) {
        bits.at[k] = saturated(value);
      } else if (k % 2 == 1) {
        const uint16_t two = rounded_to_float8<kE5m2>(to_float(pack.at[k - 1]) * scale_of(k - 1), value);
        std::memcpy(&bits.at[k - 1], &two, sizeof(two));
      }
    }
    return bits;
  }

  /// Rounds one number. NaN stays NaN.
  FSDP_DEVICE static To saturated(float value) {
    constexpr float kMost = kLargestNumber<To>;
    if (value > kMost) return To(kMost);
    return To(value < -kMost ? -kMost : value);
  }
};

template <typename Launch>
void round_to_float8(const Launch& launch, const Float8Rounding& a) {
  auto with_kernel = [&]<typename Kernel>(Kernel) {
    constexpr int kSide = Kernel::kSide;
    const int64_t squares = ((a.rows + kSide - 1) / kSide) * ((a.width + kSide - 1) / kSide);
    launch.template run<Kernel>(Grid{squares}, a);
  };
  auto with_type = [&]<typename To, bool kByRows>(To, std::bool_constant<kByRows>) {
    // A gathered weight may have any alignment.
    constexpr int kPack = kPackOf<c10::BFloat16>;
    fit_packs<c10::BFloat16>(0, a.x) ? with_kernel(Float8Kernel<To, kByRows, kPack>())
                                     : with_kernel(Float8Kernel<To, kByRows, 1>());
  };
  if (a.by_rows) return with_type(c10::Float8_e4m3fn(), std::true_type());
  a.is_e5m2 ? with_type(c10::Float8_e5m2(), std::false_type())
            : with_type(c10::Float8_e4m3fn(), std::false_type());
}

}  // namespace fsdp::kernels::cuda
