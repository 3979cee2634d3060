#pragma once

// SwiGLU and GELU with a bias (model/kernels/fused.h).

#include "model/kernels/cuda/columns.cuh"
#include "model/kernels/cuda/elements.cuh"
#include "model/kernels/rows.h"

namespace fsdp::kernels::cuda {

inline constexpr float kLog2E = 1.44269504F;

/// Returns sigmoid(x ln 2) = 1 / (1 + 2^-x), by instructions of the hardware that round once each. The
/// absolute error is below 2^-22; the relative error is, too, for x > 0, and (4 + |x|) 2^-22 otherwise,
/// because it is that of 2^-x for an x that was rounded. So one function serves all types.
FSDP_DEVICE float sigmoid_of_binary(float x) { return fast_reciprocal(1.0F + fast_exp2(-x)); }
FSDP_DEVICE float sigmoid(float x) { return sigmoid_of_binary(x * kLog2E); }

/// The rows of a thread's warp: each Tile::kWarps-th row from `begin` on.
template <typename Tile>
struct RowGroup {
  static constexpr int kRows = 4 * Tile::kWarps;  ///< rows of a block
  int64_t begin, end;

  FSDP_DEVICE explicit RowGroup(int64_t rows)
      : begin(block() * kRows + warp()), end((block() + 1) * kRows < rows ? (block() + 1) * kRows : rows) {}
  static Grid grid(int64_t rows, int64_t width) { return Tile::grid((rows + kRows - 1) / kRows, width); }
};

template <typename T, typename Tile>
struct SwiGluKernel {
  using Arguments = SwiGluRows;
  using Shared = Nothing;
  static constexpr int kThreads = Tile::kThreads;

  FSDP_DEVICE static void run(const Arguments& a, Shared&) {
    const RowGroup<Tile> group(a.rows);
    const int64_t column = Tile::column();
    if (column >= a.width) return;
    const T* gates = static_cast<const T*>(a.gate) + column;
    const T* ups = static_cast<const T*>(a.up) + column;
    T* y = static_cast<T*>(a.y) + column;
    FSDP_UNROLL_BY(2)  // more rows at once do not fit into the registers on compute capability 8.0
    for (int64_t row = group.begin; row < group.end; row += Tile::kWarps) {
      auto gate = load_pack<Tile::kPack>(gates + row * a.stride);
      const auto up = load_pack<Tile::kPack>(ups + row * a.stride);
      FSDP_UNROLL
      for (int i = 0; i < Tile::kPack; ++i) {
        const float value = to_float(gate.at[i]);
        gate.at[i] = T(value * sigmoid(value) * to_float(up.at[i]));
      }
      store_pack(y + row * a.width, gate);
    }
  }
};

template <typename T, typename Tile>
struct SwiGluGradKernel {
  using Arguments = SwiGluGradRows;
  using Shared = Nothing;
  static constexpr int kThreads = Tile::kThreads;

  FSDP_DEVICE static void run(const Arguments& a, Shared&) {
    const RowGroup<Tile> group(a.rows);
    const int64_t column = Tile::column();
    if (column >= a.width) return;
    for (int64_t row = group.begin; row < group.end; row += Tile::kWarps) {
      const int64_t at = row * a.stride + column;
      auto dy = load_pack<Tile::kPack>(static_cast<const T*>(a.dy) + row * a.width + column);
      auto gate = load_pack<Tile::kPack>(static_cast<const T*>(a.gate) + at);
      auto up = load_pack<Tile::kPack>(static_cast<const T*>(a.up) + at);
      FSDP_UNROLL
      for (int i = 0; i < Tile::kPack; ++i) {
        const float value = to_float(gate.at[i]), gradient = to_float(dy.at[i]);
        const float up_value = to_float(up.at[i]), s = sigmoid(value), silu = value * s;
        up.at[i] = T(gradient * silu);
        gate.at[i] = T(gradient * up_value * (s + silu * (1.0F - s)));
        dy.at[i] = T(silu * up_value);
      }
      store_pack(static_cast<T*>(a.dgate) + at, gate);
      store_pack(static_cast<T*>(a.dup) + at, up);
      if (a.y != nullptr) store_pack(static_cast<T*>(a.y) + row * a.width + column, dy);
    }
  }
};

/// GELU's tanh form is x times (1 + tanh(u)) / 2 = sigmoid(2 u) with u = sqrt(2 / pi) (x + 0.044715 x^3).
/// These are the coefficients of 2 u / ln 2.
inline constexpr float kGeluLinear = 1.59576912F * kLog2E;  // 2 sqrt(2 / pi)
inline constexpr float kGeluCubic = 0.044715F * kGeluLinear;
/// Squares beyond those of +-16, where sigmoid(2 u) is 0 or 1 to the last place, could overflow.
FSDP_DEVICE float square_for_gelu(float x) { return ::fminf(x * x, 256.0F); }

template <typename T, typename Tile>
struct BiasGeluKernel {
  using Arguments = BiasGeluRows;
  using Shared = Nothing;
  static constexpr int kThreads = Tile::kThreads;

  FSDP_DEVICE static void run(const Arguments& a, Shared&) {
    const RowGroup<Tile> group(a.rows);
    const int64_t column = Tile::column();
    if (column >= a.width) return;
    const auto bias = load_pack<Tile::kPack>(static_cast<const T*>(a.bias) + column);
    const T* x = static_cast<const T*>(a.x) + column;
    T* y = static_cast<T*>(a.y) + column;
    for (int64_t row = group.begin; row < group.end; row += Tile::kWarps) {
      auto pack = load_pack<Tile::kPack>(x + row * a.width);
      FSDP_UNROLL
      for (int i = 0; i < Tile::kPack; ++i) {
        const float value = to_float(pack.at[i]) + to_float(bias.at[i]);
        const float s = sigmoid_of_binary(value * (kGeluLinear + kGeluCubic * square_for_gelu(value)));
        pack.at[i] = T(value * s);
      }
      store_pack(y + row * a.width, pack);
    }
  }
};

// The derivative of y = v s with s = sigmoid(2 u) is dy/dv = s + y (1 - s) 2 u'(v).
template <typename T, typename Tile>
struct BiasGeluGradKernel {
  using Arguments = RowsInParts<BiasGeluGradRows>;
  using Shared = typename Tile::Shared;
  static constexpr int kThreads = Tile::kThreads;
  static constexpr int kMinBlocks = 4;
  static constexpr float kSlopeLinear = kGeluLinear / kLog2E, kSlopeCubic = 3 * kGeluCubic / kLog2E;

  FSDP_DEVICE static void run(const Arguments& arguments, Shared& shared) {
    const BiasGeluGradRows& a = arguments.rows;
    const int64_t column = Tile::column(), end = arguments.end();
    float sums[Tile::kPack] = {};
    if (column < a.width) {
      const auto bias = load_pack<Tile::kPack>(static_cast<const T*>(a.bias) + column);
      const T* x = static_cast<const T*>(a.x) + column;
      const T* dy = static_cast<const T*>(a.dy) + column;
      T* dx = static_cast<T*>(a.dx) + column;
      for (int64_t row = arguments.begin() + warp(); row < end; row += Tile::kWarps) {
        const auto values = load_pack<Tile::kPack>(x + row * a.width);
        auto gradients = load_pack<Tile::kPack>(dy + row * a.width);
        FSDP_UNROLL
        for (int i = 0; i < Tile::kPack; ++i) {
          const float value = to_float(values.at[i]) + to_float(bias.at[i]), square = square_for_gelu(value);
          const float s = sigmoid_of_binary(value * (kGeluLinear + kGeluCubic * square));
          const float y = value * s, slope = kSlopeLinear + kSlopeCubic * square;  // 2 u'(v)
          const float gradient = to_float(gradients.at[i]) * (s + y * (1.0F - s) * slope);
          sums[i] += gradient;
          gradients.at[i] = T(gradient);
        }
        store_pack(dx + row * a.width, gradients);
      }
    }
    Tile::store_sums(sums, shared, a.dbias + block() * a.width, a.width);
  }
};

template <typename T, typename Launch>
void swiglu(const Launch& launch, const SwiGluRows& a) {
  with_column_tile<T>(fit_packs<T>(a.width, a.gate, a.up, a.y) && fit_packs<T>(a.stride), [&](auto tile) {
    using Tile = decltype(tile);
    launch.template run<SwiGluKernel<T, Tile>>(RowGroup<Tile>::grid(a.rows, a.width), a);
  });
}

template <typename T, typename Launch>
void swiglu_backward(const Launch& launch, const SwiGluGradRows& a) {
  const bool fit = fit_packs<T>(a.width, a.dy, a.gate, a.up, a.dgate, a.dup, a.y) && fit_packs<T>(a.stride);
  with_column_tile<T>(fit, [&](auto tile) {
    using Tile = decltype(tile);
    launch.template run<SwiGluGradKernel<T, Tile>>(RowGroup<Tile>::grid(a.rows, a.width), a);
  });
}

template <typename T, typename Launch>
void bias_gelu(const Launch& launch, const BiasGeluRows& a) {
  with_column_tile<T>(fit_packs<T>(a.width, a.x, a.bias, a.y), [&](auto tile) {
    using Tile = decltype(tile);
    launch.template run<BiasGeluKernel<T, Tile>>(RowGroup<Tile>::grid(a.rows, a.width), a);
  });
}

template <typename T, typename Launch>
void bias_gelu_backward(const Launch& launch, const BiasGeluGradRows& a, const RowParts& parts) {
  with_column_tile<T>(fit_packs<T>(a.width, a.dy, a.x, a.bias, a.dx), [&](auto tile) {
    using Tile = decltype(tile);
    launch.template run<BiasGeluGradKernel<T, Tile>>(Tile::grid(parts.count(), a.width), {a, parts.each()});
  });
}

}  // namespace fsdp::kernels::cuda
