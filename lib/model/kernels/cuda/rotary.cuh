#pragma once

// Rotary position embedding (model/kernels/fused.h): a thread rotates a pack of the first half of heads with
// the corresponding pack of the second half. Its heads have the same angles, which it loads once: those of
// the second half equal those of the first.

#include <algorithm>

#include "model/kernels/cuda/kernels.h"
#include "model/kernels/cuda/packs.cuh"
#include "model/kernels/rows.h"

namespace fsdp::kernels::cuda {

/// How threads share the heads of a token: `columns` threads take a pack each, and each of them every
/// `step`-th head.
struct RotaryThreads {
  static constexpr int kThreads = 256;
  static constexpr int kHeads = 4;  ///< heads of a thread

  int packs = 0;              ///< of half a head
  int columns = 0, step = 0;  ///< of a token
  int token_bits = 0;         ///< a block has 2^token_bits tokens
  uint32_t tokens = 0, blocks_of_sequence = 0;

  RotaryThreads(int64_t tokens, int64_t heads, int64_t packs)
      : packs(static_cast<int>(packs)), tokens(static_cast<uint32_t>(tokens)) {
    int threads = kThreads;  // of a token
    while (threads > 1 && threads / 2 >= packs && threads / 2 * kHeads >= heads * packs) {
      threads /= 2;
      ++token_bits;
    }
    columns = std::min(threads, this->packs);
    step = threads / columns;
    blocks_of_sequence = static_cast<uint32_t>(((tokens - 1) >> token_bits) + 1);
  }
  Grid grid(int64_t sequences) const { return {sequences * blocks_of_sequence}; }

  /// Calls body(sequence, token, pack, first head) for each of the thread's packs.
  template <typename Body>
  FSDP_DEVICE void for_packs(const Body& body) const {
    const auto here = static_cast<uint32_t>(block());
    const uint32_t sequence = here / blocks_of_sequence;
    const int threads = kThreads >> token_bits, member = thread() & (threads - 1);
    const uint32_t token = ((here - sequence * blocks_of_sequence) << token_bits) +
                           static_cast<uint32_t>(thread()) / static_cast<uint32_t>(threads);
    const int head = member / columns;
    if (token >= tokens || head >= step) return;
    for (int pack = member - head * columns; pack < packs; pack += columns) body(sequence, token, pack, head);
  }
};

/// The angles of a pack.
template <typename T, int kPack>
struct RotaryAngles {
  float cos[kPack], sin[kPack];

  FSDP_DEVICE RotaryAngles(const float* cosines, const float* sines, bool back) {
    load_floats(cosines, cos);
    load_floats(sines, sin);
    FSDP_UNROLL
    for (int i = 0; i < kPack; ++i) sin[i] = back ? -sin[i] : sin[i];
  }
  FSDP_DEVICE void turn(Pack<T, kPack>& first, Pack<T, kPack>& second) const {
    const auto u = floats_of(first), v = floats_of(second);
    FSDP_UNROLL
    for (int i = 0; i < kPack; ++i) {
      first.at[i] = T(u.at[i] * cos[i] - v.at[i] * sin[i]);
      second.at[i] = T(v.at[i] * cos[i] + u.at[i] * sin[i]);
    }
  }
};

struct RotaryArguments {
  RotaryRows rows;
  RotaryThreads threads;
};

template <typename T, int kPack>
struct RotaryKernel {
  using Arguments = RotaryArguments;
  using Shared = Nothing;
  static constexpr int kThreads = RotaryThreads::kThreads;

  FSDP_DEVICE static void run(const Arguments& arguments, Shared&) {
    const RotaryRows& a = arguments.rows;
    arguments.threads.for_packs([&](uint32_t sequence, uint32_t token, int pack, int first_head) {
      const int at = pack * kPack, half = static_cast<int>(a.head_dim / 2);
      const int64_t angle = static_cast<int64_t>(token) * a.head_dim + at;
      const RotaryAngles<T, kPack> angles(a.cos + angle, a.sin + angle, a.back);
      const int64_t row = static_cast<int64_t>(sequence) * a.tokens + token;
      const T* x = static_cast<const T*>(a.x) + row * a.stride + at;
      T* y = static_cast<T*>(a.y) + row * a.stride + at;
      FSDP_UNROLL_BY(2)
      for (int head = first_head; head < static_cast<int>(a.heads); head += arguments.threads.step) {
        const int64_t one = head * a.head_dim, two = one + half;
        auto first = load_pack<kPack>(x + one), second = load_pack<kPack>(x + two);
        angles.turn(first, second);
        store_pack(y + one, first);
        store_pack(y + two, second);
      }
    });
  }
};

/// Heads are rotated in sequences from the first token on: a.first is 0, and a.rows a multiple of a.tokens.
template <typename T, typename Launch>
void rotary(const Launch& launch, const RotaryRows& a) {
  if (a.rows == 0) return;
  const int64_t half = a.head_dim / 2;
  auto with_pack = [&]<int kPack>() {
    const RotaryThreads threads(a.tokens, a.heads, half / kPack);
    launch.template run<RotaryKernel<T, kPack>>(threads.grid(a.rows / a.tokens),
                                                {.rows = a, .threads = threads});
  };
  const bool fit = fit_packs<T>(half, a.x, a.y) && fit_packs<T>(a.stride) && fit_packs<T>(0, a.cos, a.sin);
  fit ? with_pack.template operator()<kPackOf<T>>() : with_pack.template operator()<1>();
}

struct JoinArguments {
  JoinedGradients gradients;
  RotaryThreads threads;
};

/// Joins gradients of heads and turns those of queries and keys back, in one pass.
template <typename T, int kPack>
struct JoinRotaryKernel {
  using Arguments = JoinArguments;
  using Shared = Nothing;
  static constexpr int kThreads = RotaryThreads::kThreads;

  FSDP_DEVICE static void run(const Arguments& arguments, Shared&) {
    const JoinedGradients& a = arguments.gradients;
    const int queries = static_cast<int>(a.queries.heads), turned = queries + static_cast<int>(a.keys.heads),
              all = turned + static_cast<int>(a.values.heads);
    arguments.threads.for_packs([&](uint32_t sequence, uint32_t token, int pack, int first_head) {
      const int at = pack * kPack, half = static_cast<int>(a.head_dim / 2);
      const int64_t angle = static_cast<int64_t>(token) * a.head_dim + at;
      const RotaryAngles<T, kPack> angles(a.cos + angle, a.sin + angle, /*back=*/true);
      T* y = static_cast<T*>(a.y) +
             (static_cast<int64_t>(sequence) * arguments.threads.tokens + token) * all * a.head_dim + at;
      FSDP_UNROLL_BY(2)
      for (int head = first_head; head < all; head += arguments.threads.step) {
        const JoinedGradients::Heads& from = head < queries ? a.queries : head < turned ? a.keys : a.values;
        const int number = head - (head < queries ? 0 : head < turned ? queries : turned);
        const T* x = static_cast<const T*>(from.x) + sequence * from.of_sequence + token * from.of_token +
                     number * from.of_head + at;
        auto first = load_pack<kPack>(x), second = load_pack<kPack>(x + half);
        if (head < turned) angles.turn(first, second);
        store_pack(y + head * a.head_dim, first);
        store_pack(y + head * a.head_dim + half, second);
      }
    });
  }
};

template <typename T, typename Launch>
void join_rotary(const Launch& launch, const JoinedGradients& a) {
  if (a.sequences == 0 || a.tokens == 0) return;
  const int64_t half = a.head_dim / 2, heads = a.queries.heads + a.keys.heads + a.values.heads;
  auto with_pack = [&]<int kPack>() {
    const RotaryThreads threads(a.tokens, heads, half / kPack);
    launch.template run<JoinRotaryKernel<T, kPack>>(threads.grid(a.sequences),
                                                    {.gradients = a, .threads = threads});
  };
  const auto fits = [](const JoinedGradients::Heads& heads) {
    return fit_packs<T>(heads.of_sequence, heads.x) && fit_packs<T>(heads.of_token) &&
           fit_packs<T>(heads.of_head);
  };
  const bool fit = fit_packs<T>(half, a.y, a.cos, a.sin) && fits(a.queries) && fits(a.keys) && fits(a.values);
  fit ? with_pack.template operator()<kPackOf<T>>() : with_pack.template operator()<1>();
}

}  // namespace fsdp::kernels::cuda
