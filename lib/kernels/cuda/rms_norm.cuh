#pragma once

// RMSNorm of rows (kernels/fused.h), a row by a team of threads.

#include "kernels/cuda/norm_grad.cuh"

namespace fsdp::kernels::cuda {

template <typename T, typename Shape>
struct RmsNormKernel {
  using Arguments = RmsNormRows;
  using Sum = TeamSum<Shape::kTeam, Shape::kThreads, 1>;
  using Shared = typename Sum::Shared;
  static constexpr int kThreads = Shape::kThreads;

  FSDP_DEVICE static void run(const Arguments& a, Shared& shared) {
    const int64_t row = block() * Shape::kTeams + Shape::number(), offset = row * a.width;
    const int packs = row < a.rows ? static_cast<int>(a.width / Shape::kPack) : 0;
    const T* weight = static_cast<const T*>(a.weight);
    T* y = static_cast<T*>(a.y) + offset;

    Row<T, Shape> values;
    load_sum(values, a, offset, packs);

    float squares[1] = {0};
    Shape::for_packs(packs, [&](int v, int index) {
      const auto pack = values.at(v, index);
      FSDP_UNROLL
      for (int i = 0; i < Shape::kPack; ++i) squares[0] += to_float(pack.at[i]) * to_float(pack.at[i]);
    });
    Sum sum_up(shared);
    sum_up(squares);
    const float reciprocal = 1.0F / ::sqrtf(squares[0] / static_cast<float>(a.width) + a.epsilon);
    if (row < a.rows && Shape::rank() == 0) a.reciprocal[row] = reciprocal;

    Shape::for_packs(packs, [&](int v, int index) {
      const int64_t at = static_cast<int64_t>(index) * Shape::kPack;
      auto pack = values.at(v, index);
      const auto factors = load_pack<Shape::kPack>(weight + at);
      FSDP_UNROLL
      for (int i = 0; i < Shape::kPack; ++i) {
        pack.at[i] = T(to_float(pack.at[i]) * reciprocal * to_float(factors.at[i]));
      }
      store_pack(y + at, pack);
    });
  }
};

/// With n = x * r, y = n * w: dx = r * (w dy - n * mean(w dy * n)).
struct RmsNormGrad {
  using Rows = RmsNormGradRows;
  static constexpr int kSums = 1;

  FSDP_DEVICE RmsNormGrad(const Rows& a, int64_t row, bool is_there)
      : reciprocal(is_there ? a.reciprocal[row] : 0) {}
  FSDP_DEVICE static float* column(const Rows& a, int) { return a.dweight; }
  /// Adds w dy n to the sum.
  FSDP_DEVICE void add(float x, float dy, float weight, float (&sums)[1], float (&of_columns)[1]) const {
    of_columns[0] = x * reciprocal * dy;
    sums[0] += of_columns[0] * weight;
  }
  FSDP_DEVICE float dx(float x, float dy, float weight, const float (&means)[1]) const {
    return reciprocal * (dy * weight - x * reciprocal * means[0]);
  }

  float reciprocal;
};

template <typename T, typename Launch>
void rms_norm(const Launch& launch, const RmsNormRows& a) {
  const bool fit = fit_packs<T>(a.width, a.x, a.residual, a.sum, a.weight, a.y);
  with_row_shape<T, 4>(a.width, fit, [&](auto shape) {
    using Shape = decltype(shape);
    const Grid grid{(a.rows + Shape::kTeams - 1) / Shape::kTeams};
    launch.template run<RmsNormKernel<T, Shape>>(grid, a);
  });
}

template <typename T, typename Launch>
void rms_norm_backward(const Launch& launch, const RmsNormGradRows& a, const RowParts& parts) {
  const bool fit = fit_packs<T>(a.width, a.dy, a.x, a.weight, a.dsum, a.dx, a.dweight);
  with_row_shape<T, 2>(a.width, fit, [&](auto shape) {
    launch.template run<NormGradKernel<T, decltype(shape), RmsNormGrad>>(Grid{parts.count()},
                                                                         {a, parts.each()});
  });
}

}  // namespace fsdp::kernels::cuda
