#pragma once

// The kernel of dropout() (model/kernels/fused.h), with the same choices as on the CPU.

#include "base/util/hash.h"
#include "model/kernels/cuda/kernels.h"
#include "model/kernels/cuda/packs.cuh"

namespace fsdp::kernels::cuda {

struct DropoutArguments {
  DropoutRows rows;
  int64_t pieces;  ///< pieces of a row; one per block
  uint32_t limit;
  float scale;
};

template <typename T, int kPack>
struct DropoutKernel {
  using Arguments = DropoutArguments;
  using Shared = Nothing;
  static constexpr int kThreads = 256;
  static constexpr int kValues = kPack > 1 ? kPack : 2;  ///< values of a thread; one hash decides two values
  static constexpr int64_t kOfBlock = static_cast<int64_t>(kThreads) * kValues;

  FSDP_DEVICE static void run(const Arguments& arguments, Shared&) {
    const DropoutRows& a = arguments.rows;
    const int64_t row = block() / arguments.pieces;
    const int64_t first = (block() - row * arguments.pieces) * kOfBlock + thread() * kValues;
    if (first >= a.width) return;
    const int64_t count = a.width - first, offset = row * a.width + first;
    const int64_t whole = row / a.pieces.count, piece = row - whole * a.pieces.count;
    const uint64_t row_key = util::mix64(a.key ^ util::mix64(static_cast<uint64_t>(a.first_row + whole)));
    // Position in the whole row.
    const int64_t place = (piece == 0 ? a.pieces.begins[0] : a.pieces.begins[1]) + first;
    T values[kValues];
    load(static_cast<const T*>(a.x) + offset, count, values);
    const bool is_odd = place % 2 != 0;
    FSDP_UNROLL
    for (int i = 0; i < kValues; i += 2) {
      const auto pair = row_key + static_cast<uint64_t>((place + i) / 2);
      const uint64_t bits = util::mix64(pair), next = is_odd ? util::mix64(pair + 1) : 0;
      values[i] = chosen(arguments, values[i], static_cast<uint32_t>(is_odd ? bits >> 32 : bits));
      values[i + 1] = chosen(arguments, values[i + 1], static_cast<uint32_t>(is_odd ? next : bits >> 32));
    }
    store(static_cast<T*>(a.y) + offset, count, values);
  }

 private:
  FSDP_DEVICE static T chosen(const Arguments& a, T value, uint32_t bits) {
    return bits < a.limit ? T(0.0F) : T(to_float(value) * a.scale);
  }
  FSDP_DEVICE static void load(const T* from, int64_t count, T (&values)[kValues]) {
    FSDP_UNROLL
    for (int p = 0; p < kValues / kPack; ++p) {
      const auto pack = p * kPack < count ? load_pack<kPack>(from + p * kPack) : Pack<T, kPack>{};
      for (int i = 0; i < kPack; ++i) values[p * kPack + i] = pack.at[i];
    }
  }
  FSDP_DEVICE static void store(T* to, int64_t count, const T (&values)[kValues]) {
    FSDP_UNROLL
    for (int p = 0; p < kValues / kPack; ++p) {
      Pack<T, kPack> pack;
      for (int i = 0; i < kPack; ++i) pack.at[i] = values[p * kPack + i];
      if (p * kPack < count) store_pack(to + p * kPack, pack);
    }
  }
};

template <typename T, typename Launch>
void dropout(const Launch& launch, const DropoutRows& a) {
  auto with_pack = [&]<int kPack>() {
    using Kernel = DropoutKernel<T, kPack>;
    const int64_t pieces = (a.width + Kernel::kOfBlock - 1) / Kernel::kOfBlock;
    launch.template run<Kernel>(Grid{a.rows * pieces}, {.rows = a,
                                                        .pieces = pieces,
                                                        .limit = static_cast<uint32_t>(a.p * 4294967296.0),
                                                        .scale = static_cast<float>(1 / (1 - a.p))});
  };
  fit_packs<T>(a.width, a.x, a.y) ? with_pack.template operator()<kPackOf<T>>()
                                  : with_pack.template operator()<1>();
}

}  // namespace fsdp::kernels::cuda
