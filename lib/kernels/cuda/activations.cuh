#pragma once

// SwiGLU and GELU with a bias (kernels/fused.h).

#include "kernels/cuda/columns.cuh"
#include "kernels/cuda/elements.cuh"
#include "kernels/rows.h"

namespace fsdp::kernels::cuda {

FSDP_DEVICE float sigmoid(float x) { return 1.0F / (1.0F + ::expf(-x)); }

struct SwiGluArguments {
  const void *gate = nullptr, *up = nullptr;
  void* y = nullptr;
  int64_t n = 0;
};

template <typename T, typename Shape>
struct SwiGluKernel {
  using Arguments = SwiGluArguments;
  using Shared = Nothing;
  static constexpr int kThreads = Shape::kThreads;

  FSDP_DEVICE static void run(const Arguments& a, Shared&) {
    constexpr int kPack = Shape::kPack;
    const int64_t first = Shape::first(), count = a.n - first;
    if (count <= 0) return;
    auto gate = load_pack<kPack>(static_cast<const T*>(a.gate) + first, count);
    const auto up = load_pack<kPack>(static_cast<const T*>(a.up) + first, count);
    FSDP_UNROLL
    for (int i = 0; i < kPack; ++i) {
      const float value = to_float(gate.at[i]);
      gate.at[i] = T(value * sigmoid(value) * to_float(up.at[i]));
    }
    store_pack(static_cast<T*>(a.y) + first, gate, count);
  }
};

template <typename T, typename Shape>
struct SwiGluGradKernel {
  using Arguments = SwiGluGrad;
  using Shared = Nothing;
  static constexpr int kThreads = Shape::kThreads;

  FSDP_DEVICE static void run(const Arguments& a, Shared&) {
    constexpr int kPack = Shape::kPack;
    const int64_t first = Shape::first(), count = a.n - first;
    if (count <= 0) return;
    const auto dy = load_pack<kPack>(static_cast<const T*>(a.dy) + first, count);
    auto gate = load_pack<kPack>(static_cast<const T*>(a.gate) + first, count);
    auto up = load_pack<kPack>(static_cast<const T*>(a.up) + first, count);
    FSDP_UNROLL
    for (int i = 0; i < kPack; ++i) {
      const float value = to_float(gate.at[i]), gradient = to_float(dy.at[i]), s = sigmoid(value);
      const float up_value = to_float(up.at[i]);
      up.at[i] = T(gradient * value * s);
      gate.at[i] = T(gradient * up_value * s * (1.0F + value * (1.0F - s)));
    }
    store_pack(static_cast<T*>(a.dgate) + first, gate, count);
    store_pack(static_cast<T*>(a.dup) + first, up, count);
  }
};

/// GELU's tanh form is x times (1 + tanh(u)) / 2 = sigmoid(2 u) with u = sqrt(2 / pi) (x + 0.044715 x^3).
inline constexpr float kGeluLinear = 1.59576912F;  // 2 sqrt(2 / pi)
inline constexpr float kGeluCubic = 0.044715F * kGeluLinear;

/// Beyond these bounds sigmoid(2 u) is 0 or 1 to the last place; the cube of larger values could overflow.
FSDP_DEVICE float clamped_for_gelu(float x) {
  x = x < -16.0F ? -16.0F : x;
  return x > 16.0F ? 16.0F : x;
}

template <typename T, typename Tile>
struct BiasGeluKernel {
  using Arguments = BiasGeluRows;
  using Shared = Nothing;
  static constexpr int kThreads = Tile::kThreads;
  static constexpr int kRows = 4 * Tile::kWarps;  ///< of a block

  FSDP_DEVICE static void run(const Arguments& a, Shared&) {
    const int64_t begin = block() * kRows, end = begin + kRows < a.rows ? begin + kRows : a.rows;
    const int64_t column = Tile::column();
    if (column >= a.width) return;
    const auto bias = load_pack<Tile::kPack>(static_cast<const T*>(a.bias) + column);
    const T* x = static_cast<const T*>(a.x) + column;
    T* y = static_cast<T*>(a.y) + column;
    for (int64_t row = begin + warp(); row < end; row += Tile::kWarps) {
      auto pack = load_pack<Tile::kPack>(x + row * a.width);
      FSDP_UNROLL
      for (int i = 0; i < Tile::kPack; ++i) {
        const float value = to_float(pack.at[i]) + to_float(bias.at[i]), c = clamped_for_gelu(value);
        pack.at[i] = T(value * sigmoid(c * (kGeluLinear + kGeluCubic * c * c)));
      }
      store_pack(y + row * a.width, pack);
    }
  }
};

// With s = sigmoid(2 u), y = v s: dy/dv = s + v s (1 - s) 2 u'(v).
template <typename T, typename Tile>
struct BiasGeluGradKernel {
  using Arguments = RowsInParts<BiasGeluGradRows>;
  using Shared = typename Tile::Shared;
  static constexpr int kThreads = Tile::kThreads;
  static constexpr bool kRegistersFirst = true;

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
          const float c = clamped_for_gelu(to_float(values.at[i]) + to_float(bias.at[i])), square = c * c;
          const float s = sigmoid(c * (kGeluLinear + kGeluCubic * square));
          const float slope = s + c * s * (1.0F - s) * (kGeluLinear + 3.0F * kGeluCubic * square);
          const float gradient = to_float(gradients.at[i]) * slope;
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
void swiglu(const Launch& launch, const SwiGluArguments& a) {
  with_element_shape<T>(fit_packs<T>(0, a.gate, a.up, a.y), [&](auto shape) {
    using Shape = decltype(shape);
    launch.template run<SwiGluKernel<T, Shape>>(Shape::grid(a.n), a);
  });
}

template <typename T, typename Launch>
void swiglu_backward(const Launch& launch, const SwiGluGrad& a) {
  with_element_shape<T>(fit_packs<T>(0, a.dy, a.gate, a.up, a.dgate, a.dup), [&](auto shape) {
    using Shape = decltype(shape);
    launch.template run<SwiGluGradKernel<T, Shape>>(Shape::grid(a.n), a);
  });
}

template <typename T, typename Launch>
void bias_gelu(const Launch& launch, const BiasGeluRows& a) {
  with_column_tile<T>(fit_packs<T>(a.width, a.x, a.bias, a.y), [&](auto tile) {
    using Tile = decltype(tile);
    using Kernel = BiasGeluKernel<T, Tile>;
    const int64_t groups = (a.rows + Kernel::kRows - 1) / Kernel::kRows;
    launch.template run<Kernel>(Tile::grid(groups, a.width), a);
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
