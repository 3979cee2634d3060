#pragma once

// Rounds a matrix to 8 bits (model/kernels/float8.h): in its own order, transposed, or both, reading it once.

#include <cstring>
#include <type_traits>

#include "model/kernels/cuda/kernels.h"
#include "model/kernels/cuda/packs.cuh"

namespace fsdp::kernels::cuda {

/// A block processes a square of kSide x kSide elements, of which a thread reads kRead neighbours of a row at
/// once. The numbers of rows and columns are multiples of 16, so all packs are whole.
template <typename To, int kRead>
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
    constexpr float kMost = kLargestNumber<To>, kLeast = kLeastMagnitude;
    const float largest = *a.largest;
    const float scale = kMost / (largest < kLeast ? kLeast : largest);  // NaN for NaN
    const int64_t squares_of_row = (a.width + kSide - 1) / kSide;
    const int64_t square_row = block() / squares_of_row;
    const int64_t first_row = square_row * kSide,
                  first_column = (block() - square_row * squares_of_row) * kSide;
    if (block() == 0 && thread() == 0) *a.inverse_scale = 1 / scale;

    const int column = thread() % kThreadsOfRow * kRead;
    FSDP_UNROLL
    for (int i = 0; i < kSide / kRowsAtOnce; ++i) {
      const int row = i * kRowsAtOnce + thread() / kThreadsOfRow;
      if (first_row + row >= a.rows || first_column + column >= a.width) continue;
      const int64_t at = (first_row + row) * a.width + first_column + column;
      const auto pack = load_pack<kRead>(static_cast<const c10::BFloat16*>(a.x) + at);
      const auto bits = rounded(pack, scale);
      FSDP_UNROLL
      for (int k = 0; k < kRead; k += kAtOnce) {
        std::memcpy(&shared.bits[row][column + k], &bits.at[k], kAtOnce);
      }
      if (a.values != nullptr) store_pack(static_cast<To*>(a.values) + at, bits);
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

  FSDP_DEVICE static Pack<To, kRead> rounded(const Pack<c10::BFloat16, kRead>& pack, float scale) {
    Pack<To, kRead> bits;
    FSDP_UNROLL
    for (int k = 0; k < kRead; ++k) {
      const float value = to_float(pack.at[k]) * scale;
      if constexpr (kRead % 2 != 0 || !has_float8_rounding()) {
        bits.at[k] = saturated(value);
      } else if (k % 2 == 1) {
        const uint16_t two = rounded_to_float8<kE5m2>(to_float(pack.at[k - 1]) * scale, value);
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
  auto with_type = [&]<typename To>(To) {
    // A gathered weight may have any alignment.
    constexpr int kPack = kPackOf<c10::BFloat16>;
    fit_packs<c10::BFloat16>(0, a.x) ? with_kernel(Float8Kernel<To, kPack>())
                                     : with_kernel(Float8Kernel<To, 1>());
  };
  a.is_e5m2 ? with_type(c10::Float8_e5m2()) : with_type(c10::Float8_e4m3fn());
}

}  // namespace fsdp::kernels::cuda
