#pragma once

// Kernels whose blocks compute a tile of some columns of some rows. Each warp takes one row at a time, 32
// packs wide. Columns are summed over a thread's rows, then over the warps, then over the blocks (totals()),
// in an order that depends on the sizes alone.

#include <algorithm>

#include "model/kernels/cuda/kernels.h"
#include "model/kernels/cuda/packs.cuh"
#include "model/kernels/kernel_table.h"

namespace fsdp::kernels::cuda {

template <int kPackSize>
struct ColumnTile {
  static constexpr int kPack = kPackSize;
  static constexpr int kThreads = 256;
  static constexpr int kWarps = kThreads / kWarp;
  static constexpr int kColumns = kWarp * kPack;

  FSDP_DEVICE static int64_t first_column() { return block_y() * kColumns; }
  FSDP_DEVICE static int64_t column() { return first_column() + lane() * kPack; }
  static Grid grid(int64_t parts, int64_t width) { return {parts, (width + kColumns - 1) / kColumns}; }

  struct Shared {
    float of_warps[kWarps][kColumns];
  };
  /// Stores the sums of all warps at `to`, [width]. Must be called by all threads of the block.
  FSDP_DEVICE static void store_sums(const float (&sums)[kPack], Shared& shared, float* to, int64_t width) {
    FSDP_UNROLL
    for (int i = 0; i < kPack; ++i) shared.of_warps[warp()][lane() * kPack + i] = sums[i];
    sync_block();
    const int64_t column = first_column() + thread();
    if (thread() >= kColumns || column >= width) return;
    float sum = shared.of_warps[0][thread()];
    for (int w = 1; w < kWarps; ++w) sum += shared.of_warps[w][thread()];
    to[column] = sum;
  }
};

/// Calls use(ColumnTile()) with packs of 16 bytes or, if these do not fit, of one element.
template <typename T, typename Use>
void with_column_tile(bool packs_fit, const Use& use) {
  packs_fit ? use(ColumnTile<kPackOf<T>>()) : use(ColumnTile<1>());
}

struct RowsToAdd {
  const void* x = nullptr;
  float* sums = nullptr;  ///< [parts, width]
  int64_t rows = 0, width = 0;
};

template <typename T, typename Tile>
struct AddRowsKernel {
  using Arguments = RowsInParts<RowsToAdd>;
  using Shared = typename Tile::Shared;
  static constexpr int kThreads = Tile::kThreads;

  FSDP_DEVICE static void run(const Arguments& arguments, Shared& shared) {
    const RowsToAdd& a = arguments.rows;
    const int64_t column = Tile::column(), end = arguments.end();
    float sums[Tile::kPack] = {};
    if (column < a.width) {
      const T* x = static_cast<const T*>(a.x) + column;
      FSDP_UNROLL_BY(4)
      for (int64_t row = arguments.begin() + warp(); row < end; row += Tile::kWarps) {
        add_pack(sums, load_pack<Tile::kPack>(x + row * a.width));
      }
    }
    Tile::store_sums(sums, shared, a.sums + block() * a.width, a.width);
  }
};

struct RowsToJoin {
  JoinedGradients gradients;
  float* sums = nullptr;  ///< [parts, width]; null: not needed
  int64_t rows = 0, width = 0;
};

/// Joins gradients of heads and sums the columns of what it writes, in the order of AddRowsKernel.
template <typename T, typename Tile>
struct JoinRowsKernel {
  using Arguments = RowsInParts<RowsToJoin>;
  using Shared = typename Tile::Shared;
  static constexpr int kThreads = Tile::kThreads;

  FSDP_DEVICE static void run(const Arguments& arguments, Shared& shared) {
    const RowsToJoin& a = arguments.rows;
    const JoinedGradients& from = a.gradients;
    const int64_t column = Tile::column(), end = arguments.end();
    float sums[Tile::kPack] = {};
    if (column < a.width) {
      const auto at = static_cast<uint32_t>(column), head_dim = static_cast<uint32_t>(from.head_dim);
      const int64_t head = at / head_dim, values = from.queries.heads + from.keys.heads;
      const JoinedGradients::Heads& heads = head < from.queries.heads ? from.queries
                                            : head < values           ? from.keys
                                                                      : from.values;
      const int64_t number = head - (head < from.queries.heads ? 0
                                     : head < values           ? from.queries.heads
                                                               : values);
      const T* x = static_cast<const T*>(heads.x) + number * heads.of_head + at % head_dim;
      T* y = static_cast<T*>(from.y) + column;
      FSDP_UNROLL_BY(4)
      for (int64_t row = arguments.begin() + warp(); row < end; row += Tile::kWarps) {
        const auto pack = load_pack<Tile::kPack>(x + row * heads.of_token);
        add_pack(sums, pack);
        store_pack(y + row * a.width, pack);
      }
    }
    if (a.sums != nullptr) Tile::store_sums(sums, shared, a.sums + block() * a.width, a.width);
  }
};

struct PartTotals {
  PartTotal of[kMostTotals];  ///< of the same parts and width
};

/// The kernel of totals(), with a row of blocks for each vector: 32 threads of a block sum a column, each
/// thread every 32nd part, so that a thread has all its loads under way at once.
template <typename T>
struct TotalKernel {
  using Arguments = PartTotals;
  static constexpr int kThreads = 1024;
  static constexpr int kGroups = kThreads / kWarp;
  struct Shared {
    float of_groups[kGroups][kWarp];
  };

  FSDP_DEVICE static void run(const Arguments& arguments, Shared& shared) {
    PartTotal a = arguments.of[0];  // by choices: what is indexed would be copied to memory of the thread
    FSDP_UNROLL
    for (int i = 1; i < kMostTotals; ++i) {
      if (block_y() == i) a = arguments.of[i];
    }
    const int64_t column = block() * kWarp + lane();
    float sum = 0;
    if (column < a.width) {
      FSDP_UNROLL_BY(8)
      for (int64_t part = warp(); part < a.parts; part += kGroups) sum += a.sums[part * a.width + column];
    }
    shared.of_groups[warp()][lane()] = sum;
    sync_block();
    if (warp() != 0 || column >= a.width) return;
    for (int group = 1; group < kGroups; ++group) sum += shared.of_groups[group][lane()];
    if (a.to_fp32) {
      store(static_cast<float*>(a.to)[column], sum, a.adds);
    } else {
      store(static_cast<T*>(a.to)[column], sum, a.adds);
    }
  }

 private:
  template <typename To>
  FSDP_DEVICE static void store(To& to, float sum, bool adds) {
    to = To(adds ? static_cast<float>(to) + sum : sum);
  }
};

template <typename T, typename Launch>
void add_rows(const Launch& launch, const void* x, float* sums, const RowParts& parts) {
  with_column_tile<T>(fit_packs<T>(parts.width(), x), [&](auto tile) {
    using Tile = decltype(tile);
    const RowsToAdd rows{.x = x, .sums = sums, .rows = parts.all_rows(), .width = parts.width()};
    launch.template run<AddRowsKernel<T, Tile>>(Tile::grid(parts.count(), parts.width()),
                                                {rows, parts.each()});
  });
}

template <typename T, typename Launch>
void join_rows(const Launch& launch, const JoinedGradients& gradients, float* sums, const RowParts& parts) {
  const auto fits = [](const JoinedGradients::Heads& heads) {
    return fit_packs<T>(heads.of_token, heads.x) && fit_packs<T>(heads.of_head);
  };
  const bool fit = fit_packs<T>(gradients.head_dim, gradients.y) && fits(gradients.queries) &&
                   fits(gradients.keys) && fits(gradients.values);
  with_column_tile<T>(fit, [&](auto tile) {
    using Tile = decltype(tile);
    const RowsToJoin rows{
        .gradients = gradients, .sums = sums, .rows = parts.all_rows(), .width = parts.width()};
    launch.template run<JoinRowsKernel<T, Tile>>(Tile::grid(parts.count(), parts.width()),
                                                 {rows, parts.each()});
  });
}

template <typename T, typename Launch>
void totals(const Launch& launch, const PartTotal* all, int64_t count) {
  PartTotals arguments;
  std::copy_n(all, count, arguments.of);
  launch.template run<TotalKernel<T>>(Grid{(all->width + kWarp - 1) / kWarp, count}, arguments);
}

}  // namespace fsdp::kernels::cuda
