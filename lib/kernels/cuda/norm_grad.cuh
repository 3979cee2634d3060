#pragma once

// What the norms of rows share (layer_norm.cuh, rms_norm.cuh): the input of forward, and backward's kernel.

#include "kernels/cuda/teams.cuh"
#include "kernels/row_parts.h"
#include "kernels/rows.h"

namespace fsdp::kernels::cuda {

/// A row of x, to which that of the residual is added, where there is one; the sum is stored then.
template <typename T, typename Shape, typename Rows>
FSDP_DEVICE void load_sum(Row<T, Shape>& values, const Rows& a, int64_t offset, int packs) {
  values.load(static_cast<const T*>(a.x) + offset, packs);
  if (a.residual != nullptr) {
    values.add(static_cast<const T*>(a.residual) + offset, static_cast<T*>(a.sum) + offset, packs);
  }
}

/// Backward of Norm (LayerNormGrad, RmsNormGrad): sums over each row, from which dx follows, and sums over the
/// rows, one for each parameter. A block goes through the rows of a part.
template <typename T, typename Shape, typename Norm>
struct NormGradKernel {
  using Arguments = RowsInParts<typename Norm::Rows>;
  using Sum = TeamSum<Shape::kTeam, Shape::kThreads, Norm::kSums>;
  using Columns = ColumnSums<Shape, Norm::kSums>;
  struct Shared {
    typename Sum::Shared sum;
    typename Columns::Shared columns;
  };
  static constexpr int kThreads = Shape::kThreads;

  FSDP_DEVICE static void run(const Arguments& arguments, Shared& shared) {
    const auto& a = arguments.rows;
    const int all_packs = static_cast<int>(a.width / Shape::kPack);
    const auto width = static_cast<float>(a.width);
    float* to[Norm::kSums];
    FSDP_UNROLL
    for (int s = 0; s < Norm::kSums; ++s) to[s] = Norm::column(a, s) + block() * a.width;
    Columns columns(to, all_packs);
    Sum sum_up(shared.sum);
    Row<T, Shape> weight;
    weight.load(static_cast<const T*>(a.weight), all_packs);

    // The teams of a block take a row each at a time, and those left over none.
    const int64_t end = arguments.end();
    for (int64_t first = arguments.begin(); first < end; first += Shape::kTeams) {
      const int64_t row = first + Shape::number(), offset = row * a.width;
      const int packs = row < end ? all_packs : 0;
      const Norm norm(a, row, row < end);
      Row<T, Shape> x, dy, dsum;
      x.load(static_cast<const T*>(a.x) + offset, packs);
      dy.load(static_cast<const T*>(a.dy) + offset, packs);
      if (a.dsum != nullptr) dsum.load(static_cast<const T*>(a.dsum) + offset, packs);

      float sums[Norm::kSums] = {};
      Shape::for_packs(packs, [&](int v, int index) {
        const auto values = x.at(v, index), gradients = dy.at(v, index), factors = weight.at(v, index);
        FSDP_UNROLL
        for (int i = 0; i < Shape::kPack; ++i) {
          float of_columns[Norm::kSums];
          norm.add(to_float(values.at[i]), to_float(gradients.at[i]), to_float(factors.at[i]), sums,
                   of_columns);
          FSDP_UNROLL
          for (int s = 0; s < Norm::kSums; ++s) columns.add(s, v, index, i, of_columns[s]);
        }
      });
      sum_up(sums);
      FSDP_UNROLL
      for (int s = 0; s < Norm::kSums; ++s) sums[s] /= width;

      Shape::for_packs(packs, [&](int v, int index) {
        const auto values = x.at(v, index), gradients = dy.at(v, index), factors = weight.at(v, index);
        float dx[Shape::kPack];
        FSDP_UNROLL
        for (int i = 0; i < Shape::kPack; ++i) {
          dx[i] = norm.dx(to_float(values.at[i]), to_float(gradients.at[i]), to_float(factors.at[i]), sums);
        }
        if (a.dsum != nullptr) add_pack(dx, dsum.at(v, index));
        store_pack(static_cast<T*>(a.dx) + offset + static_cast<int64_t>(index) * Shape::kPack,
                   rounded<T>(dx));
      });
    }
    columns.finish(shared.columns);
  }
};

}  // namespace fsdp::kernels::cuda
