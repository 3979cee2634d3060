#pragma once

// Losses of rows of logits, which are overwritten by their gradients (model/kernels/fused.h,
// linear_cross_entropy). A block processes a row: one pass computes the largest logit and the sum of the
// exponentials (Milakov and Gimelshein: Online normalizer calculation for softmax, 2018, algorithm 3),
// another the gradient.

#include <type_traits>

#include "model/kernels/cuda/block_sum.cuh"
#include "model/kernels/cuda/packs.cuh"
#include "model/kernels/rows.h"

namespace fsdp::kernels::cuda {

/// A row with any alignment: aligned packs, and single elements before and after them.
template <typename T, int kThreads>
class LooseRow {
 public:
  static constexpr int kPack = kPackOf<T>;
  /// Number of packs; more packs of 16 bits do not fit into the registers.
  static constexpr int kAtOnce = std::is_same_v<T, c10::Half> ? 2 : std::is_same_v<T, c10::BFloat16> ? 3 : 4;

  FSDP_DEVICE LooseRow(T* row, int64_t width) : row_(row), width_(width) {
    const auto past = static_cast<int64_t>(reinterpret_cast<uintptr_t>(row) % kPackBytes / sizeof(T));
    head_ = past == 0 ? 0 : kPack - past;
    head_ = head_ < width ? head_ : width;
    packs_ = (width - head_) / kPack;
  }

  /// Calls body(first element, values) for the thread's packs and its single element.
  template <typename Body>
  FSDP_DEVICE void for_each(const Body& body) const {
    FSDP_UNROLL_BY(kAtOnce)
    for (int64_t pack = thread(); pack < packs_; pack += kThreads) {
      const int64_t first = head_ + pack * kPack;
      auto values = load_pack<kPack>(row_ + first);
      body(first, values);
    }
    const int64_t tail = head_ + packs_ * kPack;
    // There are fewer than 16 single elements, at most one per thread.
    int64_t single = thread();
    if (single >= head_) single += tail - head_;
    if (single < width_) {
      auto value = load_pack<1>(row_ + single);
      body(single, value);
    }
  }

 private:
  T* row_;
  int64_t width_, head_, packs_;
};

template <typename T>
struct LossKernel {
  using Arguments = LossRows;
  /// Two blocks on a multiprocessor: one computes while the other waits for its sums.
  static constexpr int kThreads = 512, kMinBlocks = 2;
  using Floats = BlockReduction<float, kThreads>;
  using Doubles = BlockReduction<double, kThreads>;
  struct Shared {
    typename Floats::Shared most;
    typename Doubles::Shared sum, logits;
  };

  FSDP_DEVICE static void run(const Arguments& a, Shared& shared) {
    T* logits = static_cast<T*>(a.logits) + block() * a.stride;
    const LooseRow<T, kThreads> row(logits, a.vocabulary);
    if (a.targets[block()] == kIgnored) {
      if (a.found != nullptr) {
        if (thread() == 0) a.found[block()] = {};
        return;
      }
      if (a.differentiates) {
        row.for_each([&](int64_t first, auto& values) {
          for (auto& value : values.at) value = T(0.0F);
          store_pack(logits + first, values);
        });
      }
      if (thread() == 0) a.losses[block()] = 0;
      return;
    }
    const int64_t target = a.targets[block()] - a.first;
    const RowStatistics all = a.known != nullptr ? a.known[block()] : statistics(a, row, target, shared);
    if (a.found != nullptr) {
      if (thread() == 0) a.found[block()] = all;
      return;
    }
    const double log_sum = ::log(all.sum), log_all = log_sum + all.most;
    const auto smoothing = static_cast<double>(a.label_smoothing), z = static_cast<double>(a.z_loss);
    const auto vocabulary = static_cast<double>(a.whole > 0 ? a.whole : a.vocabulary);
    double loss = log_all - all.of_target + z * log_all * log_all;
    if (smoothing > 0) loss += smoothing * (all.of_target - all.total / vocabulary);
    if (thread() == 0) a.losses[block()] = loss;
    if (!a.differentiates) return;

    const float factor = a.row_factors != nullptr ? a.factor * a.row_factors[block()] : a.factor;
    const double share = static_cast<double>(factor) / *a.counted;
    const auto scale = static_cast<float>(share * (1 + 2 * z * log_all) / all.sum);
    const auto spread = static_cast<float>(share * smoothing / vocabulary);
    const auto hit = static_cast<float>(share * (1 - smoothing));
    const auto most = static_cast<float>(all.most);
    row.for_each([&](int64_t first, auto& values) {
      FSDP_UNROLL
      for (int i = 0; i < static_cast<int>(sizeof(values.at) / sizeof(T)); ++i) {
        float gradient = ::expf(to_float(values.at[i]) - most) * scale - spread;
        if (first + i == target) gradient -= hit;
        values.at[i] = T(gradient);
      }
      store_pack(logits + first, values);
    });
  }

 private:
  static constexpr float kLowest = -3.402823466e+38F;  ///< finite, so that differences to it are numbers

  /// Returns the statistics of these columns to all threads. `target` is its column, if it is among them.
  FSDP_DEVICE static RowStatistics statistics(const Arguments& a, const LooseRow<T, kThreads>& row,
                                              int64_t target, Shared& shared) {
    const T* logits = static_cast<const T*>(a.logits) + block() * a.stride;
    const bool is_here = target >= 0 && target < a.vocabulary;
    const int64_t token = target + a.first, tokens = a.whole > 0 ? a.whole : a.vocabulary;
    const bool is_elsewhere = !is_here && token >= 0 && token < tokens;
    float most = kLowest, sum = 0, total = 0;
    row.for_each([&](int64_t, const auto& values) {
      float largest = most;
      FSDP_UNROLL
      for (const auto& value : values.at) {
        const float logit = to_float(value);
        largest = logit > largest ? logit : largest;
        total += logit;
      }
      sum *= ::expf(most - largest);
      most = largest;
      FSDP_UNROLL
      for (const auto& value : values.at) sum += ::expf(to_float(value) - most);
    });
    // All threads read the value before the first block sum, and write after it.
    const float of_target = is_here ? to_float(logits[target]) : is_elsewhere ? 0.0F : not_a_number();
    const float most_of_all = Floats::of(most, shared.most, [](float x, float y) { return x > y ? x : y; });
    const double sum_of_all = Doubles::sum(static_cast<double>(sum * ::expf(most - most_of_all)), shared.sum);

    double total_of_all = 0;
    if (a.label_smoothing > 0) {  // the same for all threads
      total_of_all = Doubles::sum(static_cast<double>(total), shared.logits);
    }
    return {static_cast<double>(most_of_all), sum_of_all, static_cast<double>(of_target), total_of_all};
  }
};

struct Targets {
  const int64_t* targets = nullptr;
  int64_t rows = 0;
  double* counted = nullptr;
};

struct CountKernel {
  using Arguments = Targets;
  static constexpr int kThreads = 1024;
  using Sum = BlockReduction<double, kThreads>;
  using Shared = Sum::Shared;

  FSDP_DEVICE static void run(const Arguments& a, Shared& shared) {
    double count = 0;
    for (int64_t row = thread(); row < a.rows; row += kThreads) count += a.targets[row] == kIgnored ? 0 : 1;
    count = Sum::sum(count, shared);
    if (thread() == 0) *a.counted = count > 1 ? count : 1;
  }
};

template <typename Launch>
void count_targets(const Launch& launch, const int64_t* targets, int64_t rows, double* counted) {
  launch.template run<CountKernel>(Grid{1}, {.targets = targets, .rows = rows, .counted = counted});
}

template <typename T, typename Launch>
void losses(const Launch& launch, const LossRows& a) {
  launch.template run<LossKernel<T>>(Grid{a.rows}, a);
}

template <typename Launch>
void mean_loss(const Launch& launch, const double* losses, int64_t rows, const double* counted, float* mean) {
  launch.template run<SumKernel>(Grid{1}, {.values = losses, .n = rows, .divisor = counted, .rounded = mean});
}

}  // namespace fsdp::kernels::cuda
