#pragma once

// LayerNorm of rows (kernels/fused.h), a row by a team of threads.

#include "kernels/cuda/norm_grad.cuh"

namespace fsdp::kernels::cuda {

// The second pass over a row sums squares of differences to the mean; their own sum, which is 0 but for
// rounding, corrects the mean and the squares (Chan, Golub, LeVeque: Algorithms for Computing the Sample
// Variance, 1983, the corrected two-pass algorithm).
template <typename T, typename Shape>
struct LayerNormKernel {
  using Arguments = LayerNormRows;
  using Total = TeamSum<Shape::kTeam, Shape::kThreads, 1>;
  using Squares = TeamSum<Shape::kTeam, Shape::kThreads, 2>;
  struct Shared {
    typename Total::Shared total;
    typename Squares::Shared squares;
  };
  static constexpr int kThreads = Shape::kThreads;

  FSDP_DEVICE static void run(const Arguments& a, Shared& shared) {
    const int64_t row = block() * Shape::kTeams + Shape::number(), offset = row * a.width;
    const int packs = row < a.rows ? static_cast<int>(a.width / Shape::kPack) : 0;
    const auto width = static_cast<float>(a.width);
    const T* weight = static_cast<const T*>(a.weight);
    const T* bias = static_cast<const T*>(a.bias);
    T* y = static_cast<T*>(a.y) + offset;

    Row<T, Shape> values;
    load_sum(values, a, offset, packs);

    float total[1] = {0};
    Shape::for_packs(packs, [&](int v, int index) {
      const auto pack = values.at(v, index);
      FSDP_UNROLL
      for (int i = 0; i < Shape::kPack; ++i) total[0] += to_float(pack.at[i]);
    });
    Total sum_up(shared.total);
    sum_up(total);
    const float about = total[0] / width;
    float rest_and_squares[2] = {0, 0};
    Shape::for_packs(packs, [&](int v, int index) {
      const auto pack = values.at(v, index);
      FSDP_UNROLL
      for (int i = 0; i < Shape::kPack; ++i) {
        const float difference = to_float(pack.at[i]) - about;
        rest_and_squares[0] += difference;
        rest_and_squares[1] += difference * difference;
      }
    });
    Squares sum_both(shared.squares);
    sum_both(rest_and_squares);
    const float correction = rest_and_squares[0] / width, mean = about + correction;
    const float variance = rest_and_squares[1] / width - correction * correction;
    const float reciprocal = 1.0F / ::sqrtf((variance > 0 ? variance : 0.0F) + a.epsilon);
    if (row < a.rows && Shape::rank() == 0) {
      a.mean[row] = mean;
      a.reciprocal[row] = reciprocal;
    }

    Shape::for_packs(packs, [&](int v, int index) {
      const int64_t at = static_cast<int64_t>(index) * Shape::kPack;
      auto pack = values.at(v, index);
      const auto factors = load_pack<Shape::kPack>(weight + at), terms = load_pack<Shape::kPack>(bias + at);
      FSDP_UNROLL
      for (int i = 0; i < Shape::kPack; ++i) {
        const float normed = (to_float(pack.at[i]) - mean) * reciprocal;
        pack.at[i] = T(normed * to_float(factors.at[i]) + to_float(terms.at[i]));
      }
      store_pack(y + at, pack);
    });
  }
};

/// With n = (x - mean) * r, y = n * w + b: dx = r * (w dy - mean(w dy) - n * mean(w dy * n)).
struct LayerNormGrad {
  using Rows = LayerNormGradRows;
  static constexpr int kSums = 2;

  FSDP_DEVICE LayerNormGrad(const Rows& a, int64_t row, bool is_there)
      : reciprocal(is_there ? a.reciprocal[row] : 0), mean(is_there ? a.mean[row] : 0) {}
  FSDP_DEVICE static float* column(const Rows& a, int sum) { return sum == 0 ? a.dweight : a.dbias; }
  /// Adds w dy and w dy n to the sums.
  FSDP_DEVICE void add(float x, float dy, float weight, float (&sums)[2], float (&of_columns)[2]) const {
    const float normed = (x - mean) * reciprocal, weighted = dy * weight;
    sums[0] += weighted;
    sums[1] += weighted * normed;
    of_columns[0] = dy * normed;
    of_columns[1] = dy;
  }
  FSDP_DEVICE float dx(float x, float dy, float weight, const float (&means)[2]) const {
    return reciprocal * (dy * weight - means[0] - (x - mean) * reciprocal * means[1]);
  }

  float reciprocal, mean;
};

template <typename T, typename Launch>
void layer_norm(const Launch& launch, const LayerNormRows& a) {
  const bool fit = fit_packs<T>(a.width, a.x, a.residual, a.sum, a.weight, a.bias, a.y);
  with_row_shape<T, 4>(a.width, fit, [&](auto shape) {
    using Shape = decltype(shape);
    const Grid grid{(a.rows + Shape::kTeams - 1) / Shape::kTeams};
    launch.template run<LayerNormKernel<T, Shape>>(grid, a);
  });
}

template <typename T, typename Launch>
void layer_norm_backward(const Launch& launch, const LayerNormGradRows& a, const RowParts& parts) {
  const bool fit = fit_packs<T>(a.width, a.dy, a.x, a.weight, a.dsum, a.dx, a.dweight, a.dbias);
  with_row_shape<T, 2>(a.width, fit, [&](auto shape) {
    launch.template run<NormGradKernel<T, decltype(shape), LayerNormGrad>>(Grid{parts.count()},
                                                                           {a, parts.each()});
  });
}

}  // namespace fsdp::kernels::cuda
