#pragma once

// The gradient of embedding() (model/kernels/fused.h). Rows are sorted by id, so that the rows of an id are a
// run. Each run is summed in order and written once. A short run, as most are, is summed by one warp per tile
// of columns, a long run by a block, whose warps take every 32nd row.

#include "model/kernels/cuda/kernels.h"
#include "model/kernels/cuda/packs.cuh"

namespace fsdp::kernels::cuda {

/// Limit on the rows of a short run.
inline constexpr int64_t kShortRun = 2 * kWarp;

template <typename T, typename Table, int kPackSize>
struct RunRows {
  static constexpr int kPack = kPackSize;
  static constexpr int kColumns = kWarp * kPack;

  /// Adds rows begin, begin + step, ... below `end`, in the order of ids.
  FSDP_DEVICE static void add(const EmbeddingGradRows& a, int64_t begin, int64_t end, int step,
                              int64_t column, float (&sums)[kPack]) {
    const T* dy = static_cast<const T*>(a.dy) + column;
    FSDP_UNROLL_BY(4)
    for (int64_t i = begin; i < end; i += step) add_pack(sums, load_pack<kPack>(dy + a.order[i] * a.width));
  }

  FSDP_DEVICE static void store(const EmbeddingGradRows& a, int64_t id, int64_t column,
                                float (&sums)[kPack]) {
    Table* to = static_cast<Table*>(a.table) + id * a.width + column;
    if constexpr (sizeof(Table) == sizeof(float)) {
      if (a.adds) {
        float before[kPack];
        load_floats(to, before);
        FSDP_UNROLL
        for (int i = 0; i < kPack; ++i) sums[i] += before[i];
      }
      store_floats(to, sums);
    } else {
      store_pack(to, rounded<Table>(sums));
    }
  }
};

template <typename T, typename Table, int kPackSize>
struct ShortRunsKernel {
  using Arguments = EmbeddingGradRows;
  using Shared = Nothing;
  using Rows = RunRows<T, Table, kPackSize>;
  static constexpr int kThreads = 256;
  static constexpr int kWarps = kThreads / kWarp;

  /// Runs with one warp per row, which works if the row begins a run.
  FSDP_DEVICE static void run(const Arguments& a, Shared&) {
    const int64_t begin = block() * kWarps + warp();
    if (begin >= a.rows) return;
    const int64_t id = a.ids[begin];
    if (begin > 0 && a.ids[begin - 1] == id) return;
    // Find its end: lane i tests row i after the first, then row i + 32.
    int64_t end = begin;
    for (int64_t seen = begin + 1; seen <= begin + kShortRun; seen += kWarp) {
      const int64_t at = seen + lane();
      const uint32_t others = ballot(at >= a.rows || a.ids[at] != id);
      if (others != 0) {
        end = seen + lowest_bit(others);
        break;
      }
    }
    if (end == begin) return;  // a long run
    const int64_t column = block_y() * Rows::kColumns + lane() * Rows::kPack;
    if (column >= a.width) return;
    float sums[Rows::kPack] = {};
    Rows::add(a, begin, end, 1, column, sums);
    Rows::store(a, id, column, sums);
  }
};

template <typename T, typename Table, int kPackSize>
struct LongRunsKernel {
  using Arguments = EmbeddingGradRows;
  using Rows = RunRows<T, Table, kPackSize>;
  static constexpr int kThreads = 1024;
  static constexpr int kWarps = kThreads / kWarp;
  struct Shared {
    float of_warps[kWarps][kWarp + 1];
  };

  /// Runs one block per kShortRun-th row: a long run has such rows, and the first one's block sums the run.
  FSDP_DEVICE static void run(const Arguments& a, Shared& shared) {
    const int64_t inside = block() * kShortRun, id = a.ids[inside];
    if (block() > 0 && a.ids[inside - kShortRun] == id) return;
    const int64_t begin = first_not_below(a, id, inside > kShortRun ? inside - kShortRun : 0, inside);
    const int64_t end = first_not_below(a, id + 1, inside, a.rows);
    if (end - begin <= kShortRun) return;
    const int64_t column = block_y() * Rows::kColumns + lane() * Rows::kPack;
    float sums[Rows::kPack] = {};
    if (column < a.width) Rows::add(a, begin + warp(), end, kWarps, column, sums);
    FSDP_UNROLL
    for (int i = 0; i < Rows::kPack; ++i) {
      sync_block();
      shared.of_warps[warp()][lane()] = sums[i];
      sync_block();
      if (warp() == 0) {
        for (int w = 1; w < kWarps; ++w) sums[i] += shared.of_warps[w][lane()];
      }
    }
    if (warp() == 0 && column < a.width) Rows::store(a, id, column, sums);
  }

 private:
  /// Returns the first of rows [low, high) whose id is not below `id`; `high` if there is none.
  FSDP_DEVICE static int64_t first_not_below(const Arguments& a, int64_t id, int64_t low, int64_t high) {
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (a.ids[middle] < id) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }
};

template <typename T, typename Launch>
void embedding_backward(const Launch& launch, const EmbeddingGradRows& a) {
  auto with = [&]<typename Table, int kPack>() {
    constexpr int64_t kColumns = RunRows<T, Table, kPack>::kColumns;
    const int64_t tiles = (a.width + kColumns - 1) / kColumns;
    using Short = ShortRunsKernel<T, Table, kPack>;
    launch.template run<Short>({(a.rows + Short::kWarps - 1) / Short::kWarps, tiles}, a);
    launch.template run<LongRunsKernel<T, Table, kPack>>({(a.rows + kShortRun - 1) / kShortRun, tiles}, a);
  };
  auto with_table = [&]<typename Table>() {
    const bool fit = fit_packs<T>(a.width, a.dy, a.table);
    fit ? with.template operator()<Table, kPackOf<T>>() : with.template operator()<Table, 1>();
  };
  a.table_is_fp32 ? with_table.template operator()<float>() : with_table.template operator()<T>();
}

}  // namespace fsdp::kernels::cuda
