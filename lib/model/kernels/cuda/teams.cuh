#pragma once

// Rows that are processed by teams of threads: each row is read once, held in registers, and summed by
// shuffles and shared memory in an order that depends on the width alone.

#include <type_traits>

#include "model/kernels/cuda/packs.cuh"

namespace fsdp::kernels::cuda {

/// A team of `team` threads processes a row; thread t holds its packs t, t + team, ..., at most `vectors` of
/// them, in registers. If `vectors` is 0, rows may have any width, and are read from memory each time. A
/// block has at least `least` threads.
template <int pack, int team, int vectors, int least = 256>
struct RowShape {
  static constexpr int kPack = pack, kTeam = team, kVectors = vectors;
  static constexpr int kThreads = team < least ? least : team;  ///< threads of a block
  static constexpr int kTeams = kThreads / team;                ///< teams of a block

  FSDP_DEVICE static int rank() { return thread() % kTeam; }
  FSDP_DEVICE static int number() { return thread() / kTeam; }

  /// Calls body(v, index) for each pack of the thread, which is its v-th, and `index` of the row's `packs`.
  template <typename Body>
  FSDP_DEVICE static void for_packs(int packs, const Body& body) {
    if constexpr (kVectors > 0) {
      FSDP_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        const int index = v * kTeam + rank();
        if (index < packs) body(v, index);
      }
    } else {
      for (int index = rank(); index < packs; index += kTeam) body(0, index);
    }
  }
};

/// Calls use(RowShape()) with the shape for rows of `width` T, with up to 4 packs a thread in registers.
template <typename T, typename Use>
void with_row_shape(int64_t width, bool packs_fit, const Use& use) {
  constexpr int kPack = kPackOf<T>;
  const int64_t packs = width / kPack;
  if (!packs_fit) return use(RowShape<1, 256, 0>());
  if (packs <= 32) return use(RowShape<kPack, 32, 1>());
  if (packs <= 64) return use(RowShape<kPack, 32, 2>());
  if (packs <= 128) return use(RowShape<kPack, 64, 2>());
  if (packs <= 256) return use(RowShape<kPack, 128, 2>());
  if (packs <= 512) return use(RowShape<kPack, 256, 2>());
  if (packs <= 1024) return use(RowShape<kPack, 512, 2>());
  if (packs <= 2048) return use(RowShape<kPack, 512, 4>());
  return use(RowShape<kPack, 512, 0>());
}

/// Calls use(RowShape()) with the shape for sums over rows of `width` T: one pack a thread in registers, so
/// that there is room for its sums and for the next row, in blocks of 512 threads or more.
template <typename T, typename Use>
void with_sum_shape(int64_t width, bool packs_fit, const Use& use) {
  constexpr int kPack = kPackOf<T>;
  const int64_t packs = width / kPack;
  if (!packs_fit) return use(RowShape<1, 256, 0>());
  if (packs <= 32) return use(RowShape<kPack, 32, 1, 512>());
  if (packs <= 64) return use(RowShape<kPack, 64, 1, 512>());
  if (packs <= 128) return use(RowShape<kPack, 128, 1, 512>());
  if (packs <= 256) return use(RowShape<kPack, 256, 1, 512>());
  if (packs <= 512) return use(RowShape<kPack, 512, 1, 512>());
  if (packs <= 1024) return use(RowShape<kPack, 1024, 1>());
  return use(RowShape<kPack, 512, 0>());
}

/// A thread's packs of a row.
template <typename T, typename Shape>
class Row {
 public:
  using Packed = Pack<T, Shape::kPack>;

  FSDP_DEVICE void load(const T* from, int packs) {
    from_ = from;
    if constexpr (Shape::kVectors > 0) {
      Shape::for_packs(
          packs, [&](int v, int index) { held_[v].load(from + static_cast<int64_t>(index) * Shape::kPack); });
    }
  }
  FSDP_DEVICE Packed at(int v, int index) const {
    if constexpr (Shape::kVectors > 0) {
      return held_[v].pack();
    } else {
      return load_pack<Shape::kPack>(from_ + static_cast<int64_t>(index) * Shape::kPack);
    }
  }
  /// Makes the compiler hold the packs, not the floats that it has made of them.
  FSDP_DEVICE void stay_packed() {
    if constexpr (Shape::kVectors > 0) {
      FSDP_UNROLL
      for (Held& held : held_) held.stay_packed();
    }
  }
  /// Adds the row at `more`, rounded to T, and stores the sum at `to`.
  FSDP_DEVICE void add(const T* more, T* to, int packs) {
    Row other;
    other.load(more, packs);
    Shape::for_packs(packs, [&](int v, int index) {
      float sum[Shape::kPack] = {};
      add_pack(sum, at(v, index));
      add_pack(sum, other.at(v, index));
      const Packed pack = rounded<T>(sum);
      store_pack(to + static_cast<int64_t>(index) * Shape::kPack, pack);
      if constexpr (Shape::kVectors > 0) held_[v].hold(pack);
    });
    from_ = to;
  }

 private:
  const T* from_ = nullptr;
  using Held = std::conditional_t<(Shape::kVectors > 0), HeldPack<T, Shape::kPack>, Nothing>;
  Held held_[Shape::kVectors > 0 ? Shape::kVectors : 1] = {};
};

/// Sums over teams of kTeam threads in a block of kThreads. Must be called by all threads of the block.
template <int kTeam, int kThreads, int kValues>
class TeamSum {
 public:
  struct Shared {
    float of_warps[2][kThreads / kWarp][kValues];
  };
  FSDP_DEVICE explicit TeamSum(Shared& shared) : shared_(shared) {}

  /// Replaces each value by its sum over the team.
  FSDP_DEVICE void operator()(float (&values)[kValues]) {
    FSDP_UNROLL
    for (int i = 0; i < kValues; ++i) {
      FSDP_UNROLL
      for (int mask = kWarp / 2; mask > 0; mask /= 2) values[i] += shuffle_xor(values[i], mask);
    }
    if constexpr (kTeam > kWarp) {
      // Two buffers alternate, so that the next sum may be written while slow threads still read this one.
      float(*of_warps)[kValues] = shared_.of_warps[turn_];
      turn_ = 1 - turn_;
      if (lane() == 0) {
        for (int i = 0; i < kValues; ++i) of_warps[warp()][i] = values[i];
      }
      sync_block();
      constexpr int kWarps = kTeam / kWarp;
      const int first = warp() / kWarps * kWarps;
      FSDP_UNROLL
      for (int i = 0; i < kValues; ++i) {
        float sum = of_warps[first][i];
        for (int w = 1; w < kWarps; ++w) sum += of_warps[first + w][i];
        values[i] = sum;
      }
    }
  }

 private:
  Shared& shared_;
  int turn_ = 0;
};

/// Sums over the rows of a block, kSums vectors [width].
template <typename Shape, int kSums>
class ColumnSums {
 public:
  static constexpr bool kHolds = Shape::kVectors > 0;
  struct Shared {
    float columns[kHolds && Shape::kTeams > 1 ? Shape::kVectors* Shape::kPack* Shape::kTeam : 1];
  };

  /// Begins with sums of zero. to: [kSums] rows of sums in memory
  FSDP_DEVICE ColumnSums(float* const (&to)[kSums], int packs) : packs_(packs) {
    static_assert(kHolds || Shape::kTeams == 1);
    FSDP_UNROLL
    for (int s = 0; s < kSums; ++s) to_[s] = to[s];
    if constexpr (kHolds) {
      FSDP_UNROLL
      for (int s = 0; s < kSums; ++s) {
        FSDP_UNROLL
        for (int i = 0; i < Shape::kVectors * Shape::kPack; ++i) sums_[s][i] = 0;
      }
    } else {
      Shape::for_packs(packs, [&](int, int index) {
        for (int s = 0; s < kSums; ++s) {
          const float zeros[Shape::kPack] = {};
          store_floats(to_[s] + static_cast<int64_t>(index) * Shape::kPack, zeros);
        }
      });
    }
  }

  FSDP_DEVICE void add(int sum, int v, int index, const float (&values)[Shape::kPack]) {
    if constexpr (kHolds) {
      FSDP_UNROLL
      for (int i = 0; i < Shape::kPack; ++i) sums_[sum][v * Shape::kPack + i] += values[i];
    } else {
      float* to = to_[sum] + static_cast<int64_t>(index) * Shape::kPack;
      float sums[Shape::kPack];
      load_floats(to, sums);
      FSDP_UNROLL
      for (int i = 0; i < Shape::kPack; ++i) sums[i] += values[i];
      store_floats(to, sums);
    }
  }

  /// Stores the sums over the teams, in order. Must be called by all threads of the block after the last row,
  /// with the `to` of the beginning, which would else take up registers in between.
  FSDP_DEVICE void finish([[maybe_unused]] Shared& shared, [[maybe_unused]] float* const (&to)[kSums]) {
    if constexpr (kHolds) {
      FSDP_UNROLL
      for (int s = 0; s < kSums; ++s) {
        for (int team = 0; team < Shape::kTeams; ++team) {
          if (Shape::number() == team) add_team(sums_[s], shared, to[s]);
          if (Shape::kTeams > 1) sync_block();
        }
      }
    }
  }

 private:
  using Held = float[kHolds ? Shape::kVectors * Shape::kPack : 1];

  FSDP_DEVICE void add_team(Held& sums, [[maybe_unused]] Shared& shared, float* to) {
    Shape::for_packs(packs_, [&](int v, int index) {
      float values[Shape::kPack];
      FSDP_UNROLL
      for (int i = 0; i < Shape::kPack; ++i) {
        const int held = v * Shape::kPack + i;
        values[i] = sums[held];
        if constexpr (Shape::kTeams > 1) {
          float& column = shared.columns[held * Shape::kTeam + Shape::rank()];
          if (Shape::number() > 0) values[i] = column + values[i];
          column = values[i];
        }
      }
      if (Shape::number() == Shape::kTeams - 1) {
        store_floats(to + static_cast<int64_t>(index) * Shape::kPack, values);
      }
    });
  }

  float* to_[kSums];
  int packs_;
  float sums_[kSums][kHolds ? Shape::kVectors * Shape::kPack : 1];
};

}  // namespace fsdp::kernels::cuda
