#pragma once

// Kernels over elements without rows.

#include "kernels/cuda/packs.cuh"

namespace fsdp::kernels::cuda {

/// A pack by each thread, of which the last may be short.
template <int kPackSize>
struct ElementShape {
  static constexpr int kPack = kPackSize;
  static constexpr int kThreads = 256;
  FSDP_DEVICE static int64_t first() { return (block() * kThreads + thread()) * kPack; }
  static Grid grid(int64_t n) {
    constexpr int64_t kOfBlock = static_cast<int64_t>(kThreads) * kPack;
    return {(n + kOfBlock - 1) / kOfBlock};
  }
};

/// Calls `use(ElementShape())` with packs of 16 bytes, or of one element where pointers are not aligned.
template <typename T, typename Use>
void with_element_shape(bool packs_fit, const Use& use) {
  packs_fit ? use(ElementShape<kPackOf<T>>()) : use(ElementShape<1>());
}

struct Scaling {
  void* x = nullptr;
  int64_t n = 0;
  const float* factor = nullptr;
};

template <typename T, typename Shape>
struct ScaleKernel {
  using Arguments = Scaling;
  using Shared = Nothing;
  static constexpr int kThreads = Shape::kThreads;

  FSDP_DEVICE static void run(const Arguments& a, Shared&) {
    const float factor = *a.factor;
    const int64_t first = Shape::first(), count = a.n - first;
    if (factor == 1 || count <= 0) return;
    T* x = static_cast<T*>(a.x) + first;
    auto pack = load_pack<Shape::kPack>(x, count);
    FSDP_UNROLL
    for (int i = 0; i < Shape::kPack; ++i) pack.at[i] = T(to_float(pack.at[i]) * factor);
    store_pack(x, pack, count);
  }
};

template <typename T, typename Launch>
void scale(const Launch& launch, const Scaling& a) {
  with_element_shape<T>(fit_packs<T>(0, a.x), [&](auto shape) {
    using Shape = decltype(shape);
    launch.template run<ScaleKernel<T, Shape>>(Shape::grid(a.n), a);
  });
}

}  // namespace fsdp::kernels::cuda
