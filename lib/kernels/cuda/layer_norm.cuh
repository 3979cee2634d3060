#pragma once

// LayerNorm of rows (kernels/fused.h), a row by a team of threads.

#include "kernels/cuda/teams.cuh"
#include "kernels/row_parts.h"
#include "kernels/rows.h"

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
    values.load(static_cast<const T*>(a.x) + offset, packs);
    if (a.residual != nullptr) {
      values.add(static_cast<const T*>(a.residual) + offset, static_cast<T*>(a.sum) + offset, packs);
    }

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

// With n = (x - mean) * r, y = n * w + b: dx = r * (w dy - mean(w dy) - n * mean(w dy * n)). A block goes
// through the rows of a part.
template <typename T, typename Shape>
struct LayerNormGradKernel {
  using Arguments = RowsInParts<LayerNormGradRows>;
  using Sum = TeamSum<Shape::kTeam, Shape::kThreads, 2>;
  using Columns = ColumnSums<Shape, 2>;
  struct Shared {
    typename Sum::Shared sum;
    typename Columns::Shared columns;
  };
  static constexpr int kThreads = Shape::kThreads;

  FSDP_DEVICE static void run(const Arguments& arguments, Shared& shared) {
    const LayerNormGradRows& a = arguments.rows;
    const int all_packs = static_cast<int>(a.width / Shape::kPack);
    const auto width = static_cast<float>(a.width);
    float* const to[2] = {a.dweight + block() * a.width, a.dbias + block() * a.width};
    Columns columns(to, all_packs);
    Sum sum_up(shared.sum);
    Row<T, Shape> weight;
    weight.load(static_cast<const T*>(a.weight), all_packs);

    // The teams of a block take a row each at a time, and those left over none.
    const int64_t end = arguments.end();
    for (int64_t first = arguments.begin(); first < end; first += Shape::kTeams) {
      const int64_t row = first + Shape::number(), offset = row * a.width;
      const int packs = row < end ? all_packs : 0;
      const float reciprocal = row < end ? a.reciprocal[row] : 0, mean = row < end ? a.mean[row] : 0;
      Row<T, Shape> x, dy, dsum;
      x.load(static_cast<const T*>(a.x) + offset, packs);
      dy.load(static_cast<const T*>(a.dy) + offset, packs);
      if (a.dsum != nullptr) dsum.load(static_cast<const T*>(a.dsum) + offset, packs);

      float sums[2] = {0, 0};  // of w dy and of w dy n
      Shape::for_packs(packs, [&](int v, int index) {
        const auto values = x.at(v, index), gradients = dy.at(v, index), factors = weight.at(v, index);
        FSDP_UNROLL
        for (int i = 0; i < Shape::kPack; ++i) {
          const float normed = (to_float(values.at[i]) - mean) * reciprocal;
          const float gradient = to_float(gradients.at[i]), weighted = gradient * to_float(factors.at[i]);
          sums[0] += weighted;
          sums[1] += weighted * normed;
          columns.add(0, v, index, i, gradient * normed);
          columns.add(1, v, index, i, gradient);
        }
      });
      sum_up(sums);
      const float mean_sum = sums[0] / width, mean_product = sums[1] / width;

      Shape::for_packs(packs, [&](int v, int index) {
        const auto values = x.at(v, index), gradients = dy.at(v, index), factors = weight.at(v, index);
        float dx[Shape::kPack];
        FSDP_UNROLL
        for (int i = 0; i < Shape::kPack; ++i) {
          const float normed = (to_float(values.at[i]) - mean) * reciprocal;
          const float weighted = to_float(gradients.at[i]) * to_float(factors.at[i]);
          dx[i] = reciprocal * (weighted - mean_sum - normed * mean_product);
        }
        if (a.dsum != nullptr) add_pack(dx, dsum.at(v, index));
        store_pack(static_cast<T*>(a.dx) + offset + static_cast<int64_t>(index) * Shape::kPack,
                   rounded<T>(dx));
      });
    }
    columns.finish(shared.columns);
  }
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
    launch.template run<LayerNormGradKernel<T, decltype(shape)>>(Grid{parts.count()}, {a, parts.each()});
  });
}

}  // namespace fsdp::kernels::cuda
