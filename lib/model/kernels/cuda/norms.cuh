#pragma once

// RMSNorm and LayerNorm of rows (model/kernels/fused.h), each row by a team of threads.

#include "model/kernels/cuda/teams.cuh"
#include "model/kernels/kernel_table.h"

namespace fsdp::kernels::cuda {

/// Loads a row of x or, if there is a residual, of x + residual, which is stored too.
template <typename T, typename Shape>
FSDP_DEVICE void load_sum(Row<T, Shape>& values, const NormRows& a, int64_t offset, int packs) {
  values.load(static_cast<const T*>(a.x) + offset, packs);
  if (a.residual != nullptr) {
    values.add(static_cast<const T*>(a.residual) + offset, static_cast<T*>(a.sum) + offset, packs);
  }
}

template <typename T, typename Shape>
struct RmsNormKernel {
  using Arguments = NormRows;
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

/// The gradient is dx = r * (w dy - n * mean(w dy * n)), where n = x * r and y = n * w.
struct RmsNormGrad {
  static constexpr int kSums = 1;

  FSDP_DEVICE RmsNormGrad(const NormGradRows& a, int64_t row, bool is_there)
      : reciprocal(is_there ? a.reciprocal[row] : 0) {}
  FSDP_DEVICE static float* column(const NormGradRows& a, int) { return a.dweight; }
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

// The second pass over a row sums squares of differences to the mean; the sum of the differences, 0 except
// for rounding, corrects the mean and the squares (Chan, Golub, LeVeque: Algorithms for Computing the Sample
// Variance, 1983, the corrected two-pass algorithm).
template <typename T, typename Shape>
struct LayerNormKernel {
  using Arguments = NormRows;
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

/// dx = r * (w dy - mean(w dy) - n * mean(w dy * n)), where n = (x - mean) * r and y = n * w + b.
struct LayerNormGrad {
  static constexpr int kSums = 2;

  FSDP_DEVICE LayerNormGrad(const NormGradRows& a, int64_t row, bool is_there)
      : reciprocal(is_there ? a.reciprocal[row] : 0), mean(is_there ? a.mean[row] : 0) {}
  FSDP_DEVICE static float* column(const NormGradRows& a, int sum) { return sum == 0 ? a.dweight : a.dbias; }
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

/// A row's inputs to backward of Norm.
template <typename T, typename Shape, typename Norm>
struct NormGradInputs {
  Norm norm;
  Row<T, Shape> x, dy;

  /// Loads nothing if there is no such row: packs = 0.
  FSDP_DEVICE NormGradInputs(const NormGradRows& a, int64_t row, int packs) : norm(a, row, packs > 0) {
    x.load(static_cast<const T*>(a.x) + row * a.width, packs);
    dy.load(static_cast<const T*>(a.dy) + row * a.width, packs);
  }
};

/// Backward of Norm (LayerNormGrad, RmsNormGrad): sums over each row, from which dx follows, and sums over
/// the rows for each parameter. A block loops over the rows of a part, and loads the next rows before it
/// waits for the sums of these.
template <typename T, typename Shape, typename Norm>
struct NormGradKernel {
  using Arguments = RowsInParts<NormGradRows>;
  using Sum = TeamSum<Shape::kTeam, Shape::kThreads, Norm::kSums>;
  using Columns = ColumnSums<Shape, Norm::kSums>;
  using Inputs = NormGradInputs<T, Shape, Norm>;
  struct Shared {
    typename Sum::Shared sum;
    typename Columns::Shared columns;
  };
  /// nvcc unrolls the loop over the rows of a team of 1024, for which LayerNorm has too few registers.
  static constexpr bool kLoadsAhead = Norm::kSums == 1 || Shape::kTeam < 1024;
  /// Where the block's sums go.
  struct Places {
    float* of[Norm::kSums];
    FSDP_DEVICE explicit Places(const NormGradRows& a) {
      FSDP_UNROLL
      for (int s = 0; s < Norm::kSums; ++s) of[s] = Norm::column(a, s) + block() * a.width;
    }
  };
  static constexpr int kThreads = Shape::kThreads;
  /// Half of the threads that a multiprocessor of 2048 holds, with 64 registers each.
  static constexpr int kMinBlocks = Shape::kVectors == 0 ? 1 : 1024 / kThreads;

  FSDP_DEVICE static void run(const Arguments& arguments, Shared& shared) {
    const auto& a = arguments.rows;
    const int all_packs = static_cast<int>(a.width / Shape::kPack);
    const float share = 1.0F / static_cast<float>(a.width);
    Columns columns(Places(a).of, all_packs);
    Sum sum_up(shared.sum);
    // Beside two sums for each column the registers do not hold the factors: they come from the cache.
    constexpr bool kHoldsWeight = Norm::kSums == 1;
    Row<T, Shape> weight;
    if (kHoldsWeight) weight.load(static_cast<const T*>(a.weight), all_packs);
    const auto factors_at = [&](int v, int index) {
      if constexpr (kHoldsWeight) return weight.at(v, index);
      return load_pack<Shape::kPack>(static_cast<const T*>(a.weight) +
                                     static_cast<int64_t>(index) * Shape::kPack);
    };

    // Each team takes one row at a time. Teams without a row take part in the synchronisation only.
    const int64_t begin = arguments.begin();
    const auto rows = static_cast<int>(arguments.end() - begin);
    const auto inputs_of = [&](int row) { return Inputs(a, begin + row, row < rows ? all_packs : 0); };
    Inputs next = inputs_of(Shape::number());
    uint32_t adds = a.dsum != nullptr;  // forgotten for each row: the compiler would make two loops of one
    FSDP_UNROLL_BY(1)                   // two rows at once do not fit into the registers
    for (int first = 0; first < rows; first += Shape::kTeams) {
      Inputs in = next;
      const int number = first + Shape::number(), packs = number < rows ? all_packs : 0;
      const int64_t row = begin + number;

      float sums[Norm::kSums] = {};
      Shape::for_packs(packs, [&](int v, int index) {
        const auto values = floats_of(in.x.at(v, index)), gradients = floats_of(in.dy.at(v, index)),
                   factors = floats_of(factors_at(v, index));
        float of_columns[Norm::kSums][Shape::kPack];
        FSDP_UNROLL
        for (int i = 0; i < Shape::kPack; ++i) {
          float of_column[Norm::kSums];
          in.norm.add(values.at[i], gradients.at[i], factors.at[i], sums, of_column);
          FSDP_UNROLL
          for (int s = 0; s < Norm::kSums; ++s) of_columns[s][i] = of_column[s];
        }
        FSDP_UNROLL
        for (int s = 0; s < Norm::kSums; ++s) columns.add(s, v, index, of_columns[s]);
      });
      // The loads come back during the wait for the sums. Before, the registers are full of floats.
      if constexpr (kLoadsAhead) next = inputs_of(number + Shape::kTeams);
      forget(adds);
      Row<T, Shape> dsum;
      if (adds != 0) dsum.load(static_cast<const T*>(a.dsum) + row * a.width, packs);
      sum_up(sums);
      FSDP_UNROLL
      for (int s = 0; s < Norm::kSums; ++s) sums[s] *= share;
      in.x.stay_packed();
      in.dy.stay_packed();
      weight.stay_packed();

      Shape::for_packs(packs, [&](int v, int index) {
        const auto values = floats_of(in.x.at(v, index)), gradients = floats_of(in.dy.at(v, index)),
                   factors = floats_of(factors_at(v, index));
        float dx[Shape::kPack];
        FSDP_UNROLL
        for (int i = 0; i < Shape::kPack; ++i) {
          dx[i] = in.norm.dx(values.at[i], gradients.at[i], factors.at[i], sums);
        }
        if (adds != 0) add_pack(dx, dsum.at(v, index));
        store_pack(static_cast<T*>(a.dx) + row * a.width + static_cast<int64_t>(index) * Shape::kPack,
                   rounded<T>(dx));
      });
      if constexpr (!kLoadsAhead) next = inputs_of(number + Shape::kTeams);
    }
    columns.finish(shared.columns, Places(a).of);
  }
};

template <template <typename, typename> typename Kernel, typename T, typename Launch>
void norm(const Launch& launch, const NormRows& a) {
  const bool fit = fit_packs<T>(a.width, a.x, a.residual, a.sum, a.weight, a.bias, a.y);
  with_row_shape<T>(a.width, fit, [&](auto shape) {
    using Shape = decltype(shape);
    const Grid grid{(a.rows + Shape::kTeams - 1) / Shape::kTeams};
    launch.template run<Kernel<T, Shape>>(grid, a);
  });
}

template <typename Norm, typename T, typename Launch>
void norm_backward(const Launch& launch, const NormGradRows& a, const RowParts& parts) {
  const bool fit = fit_packs<T>(a.width, a.dy, a.x, a.weight, a.dsum, a.dx, a.dweight, a.dbias);
  with_sum_shape<T>(a.width, fit, [&](auto shape) {
    launch.template run<NormGradKernel<T, decltype(shape), Norm>>(Grid{parts.count()}, {a, parts.each()});
  });
}

template <typename T, typename Launch>
void rms_norm(const Launch& launch, const NormRows& a) {
  norm<RmsNormKernel, T>(launch, a);
}

template <typename T, typename Launch>
void rms_norm_backward(const Launch& launch, const NormGradRows& a, const RowParts& parts) {
  norm_backward<RmsNormGrad, T>(launch, a, parts);
}

template <typename T, typename Launch>
void layer_norm(const Launch& launch, const NormRows& a) {
  norm<LayerNormKernel, T>(launch, a);
}

template <typename T, typename Launch>
void layer_norm_backward(const Launch& launch, const NormGradRows& a, const RowParts& parts) {
  norm_backward<LayerNormGrad, T>(launch, a, parts);
}

}  // namespace fsdp::kernels::cuda
