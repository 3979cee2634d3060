#pragma once

#include "kernels/cuda/thread_model.cuh"

namespace fsdp::kernels::cuda {

/// What a block of kThreads combines its threads' values with, in an order of its own: shuffles within warps,
/// then the warps in turn. By all threads of the block; one call for each Shared.
template <typename T, int kThreads>
struct BlockReduction {
  struct Shared {
    T of_warps[kThreads / kWarp];
  };

  /// The result for all threads. combine(a, b) = combine(b, a)
  template <typename Combine>
  FSDP_DEVICE static T of(T value, Shared& shared, const Combine& combine) {
    FSDP_UNROLL
    for (int mask = kWarp / 2; mask > 0; mask /= 2) value = combine(value, shuffle_xor(value, mask));
    if (lane() == 0) shared.of_warps[warp()] = value;
    sync_block();
    T result = shared.of_warps[0];
    for (int w = 1; w < kThreads / kWarp; ++w) result = combine(result, shared.of_warps[w]);
    return result;
  }

  FSDP_DEVICE static T sum(T value, Shared& shared) {
    return of(value, shared, [](T a, T b) { return a + b; });
  }
};

}  // namespace fsdp::kernels::cuda
