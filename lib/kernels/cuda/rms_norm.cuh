#pragma once

// RMSNorm of rows (kernels/fused.h), a row by a team of threads.

#include "kernels/cuda/teams.cuh"
#include "kernels/row_parts.h"
#include "kernels/rows.h"

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
    values.load(static_cast<const T*>(a.x) + offset, packs);
    if (a.residual != nullptr) {
      values.add(static_cast<const T*>(a.residual) + offset, static_cast<T*>(a.sum) + offset, packs);
    }

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

// With n = x * r, y = n * w: dx = r * (w dy - n * mean(w dy * n)). A block goes through the rows of a part.
template <typename T, typename Shape>
struct RmsNormGradKernel {
  using Arguments = RowsInParts<RmsNormGradRows>;
  using Sum = TeamSum<Shape::kTeam, Shape::kThreads, 1>;
  using Columns = ColumnSums<Shape, 1>;
  struct Shared {
    typename Sum::Shared sum;
    typename Columns::Shared columns;
  };
  static constexpr int kThreads = Shape::kThreads;

  FSDP_DEVICE static void run(const Arguments& arguments, Shared& shared) {
    const RmsNormGradRows& a = arguments.rows;
    const int all_packs = static_cast<int>(a.width / Shape::kPack);
    float* const to[1] = {a.dweight + block() * a.width};
    Columns columns(to, all_packs);
    Sum sum_up(shared.sum);
    Row<T, Shape> weight;
    weight.load(static_cast<const T*>(a.weight), all_packs);

    // The teams of a block take a row each at a time, and those left over none.
    const int64_t end = arguments.end();
    for (int64_t first = arguments.begin(); first < end; first += Shape::kTeams) {
      const int64_t row = first + Shape::number(), offset = row * a.width;
      const int packs = row < end ? all_packs : 0;
      const float reciprocal = row < end ? a.reciprocal[row] : 0;
      Row<T, Shape> x, dy, dsum;
      x.load(static_cast<const T*>(a.x) + offset, packs);
      dy.load(static_cast<const T*>(a.dy) + offset, packs);
      if (a.dsum != nullptr) dsum.load(static_cast<const T*>(a.dsum) + offset, packs);

      float product[1] = {0};
      Shape::for_packs(packs, [&](int v, int index) {
        const auto values = x.at(v, index), gradients = dy.at(v, index), factors = weight.at(v, index);
        FSDP_UNROLL
        for (int i = 0; i < Shape::kPack; ++i) {
          const float of_normed = to_float(values.at[i]) * reciprocal * to_float(gradients.at[i]);
          product[0] += of_normed * to_float(factors.at[i]);
          columns.add(0, v, index, i, of_normed);
        }
      });
      sum_up(product);
      const float mean = product[0] / static_cast<float>(a.width);

      Shape::for_packs(packs, [&](int v, int index) {
        const auto values = x.at(v, index), gradients = dy.at(v, index), factors = weight.at(v, index);
        float dx[Shape::kPack];
        FSDP_UNROLL
        for (int i = 0; i < Shape::kPack; ++i) {
          const float normed = to_float(values.at[i]) * reciprocal;
          dx[i] = reciprocal * (to_float(gradients.at[i]) * to_float(factors.at[i]) - normed * mean);
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
    launch.template run<RmsNormGradKernel<T, decltype(shape)>>(Grid{parts.count()}, {a, parts.each()});
  });
}

}  // namespace fsdp::kernels::cuda
