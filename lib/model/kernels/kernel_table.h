#pragma once

// The interface between the fused kernels' autograd functions, which all devices share, and the kernels of a
// device: one table of functions over all rows of contiguous tensors. On the CPU (row_kernels.cpp) they run
// the loops of cpu/loops.h on several threads; on CUDA devices (cuda/) they enqueue kernels on the current
// stream and return.

#include <algorithm>
#include <cstdint>

#include "model/kernels/rows.h"

namespace fsdp::kernels {

/// Least number of elements per thread of the CPU.
inline constexpr int64_t kGrain = 1 << 15;

/// Rows that are cut into parts, each with its own sums over rows, which are then added up in order. The cuts
/// depend on the sizes alone, so that sums do not depend on the number of threads or multiprocessors.
class RowParts {
 public:
  struct RowCut {
    int64_t grain;  ///< least number of elements of a part
    int64_t most;   ///< greatest number of parts
  };
  static constexpr RowCut kCpu{kGrain, 32};
  /// On a GPU a part is a block of threads. A large GPU runs two on each of 132 or more multiprocessors.
  static constexpr RowCut kDevice{1 << 13, 256};

  /// The rows may belong to `samples` equal samples, each of which is cut in the same way.
  RowParts(int64_t rows, int64_t width, const RowCut& cut = kCpu, int64_t samples = 1)
      : all_rows_(rows), rows_(rows / samples), width_(width) {
    const int64_t wanted = std::clamp<int64_t>(rows_ * width / cut.grain, 1, cut.most);
    each_ = std::max<int64_t>(1, (rows_ + wanted - 1) / wanted);
    of_sample_ = std::max<int64_t>(1, (rows_ + each_ - 1) / each_);
    count_ = of_sample_ * samples;
  }
  int64_t count() const { return count_; }
  int64_t of_sample() const { return of_sample_; }
  int64_t first(int64_t part) const { return part / of_sample_ * rows_ + part % of_sample_ * each_; }
  int64_t rows(int64_t part) const { return std::min(each_, rows_ - part % of_sample_ * each_); }
  /// Number of rows of a part; the last part may have fewer.
  int64_t each() const { return each_; }
  int64_t all_rows() const { return all_rows_; }
  int64_t width() const { return width_; }

 private:
  int64_t all_rows_, rows_, width_, each_, of_sample_, count_;
};

/// The kernels for one element type. Pointers are to memory of the device.
struct RowKernels {
  void (*rms_norm)(const NormRows&);
  /// Writes sums of parts, which must be zero before on the CPU. The same holds below.
  void (*rms_norm_backward)(const NormGradRows&, const RowParts&);
  void (*layer_norm)(const NormRows&);
  void (*layer_norm_backward)(const NormGradRows&, const RowParts&);
  void (*rotary)(const RotaryRows&);
  /// Computes y = silu(gate) * up.
  void (*swiglu)(const SwiGluRows&);
  void (*swiglu_backward)(const SwiGluGradRows&);
  void (*bias_gelu)(const BiasGeluRows&);
  void (*bias_gelu_backward)(const BiasGeluGradRows&, const RowParts&);
  /// Sums over the rows of x, part by part. sums: [parts, width]
  void (*add_rows)(const void* x, float* sums, const RowParts&);
  /// Requires: as many vectors as `count`, at most kMostTotals, of the same parts and width.
  void (*totals)(const PartTotal*, int64_t count);

  /// Counts targets: `counted` is the number of targets that are not kIgnored, at least 1.
  void (*count_targets)(const int64_t* targets, int64_t rows, double* counted);
  void (*losses)(const LossRows&);
  /// Computes `mean`, the sum of losses / counted.
  void (*mean_loss)(const double* losses, int64_t rows, const double* counted, float* mean);
  /// Computes x [n] *= *factor.
  void (*scale)(void* x, int64_t n, const float* factor);

  /// Computes *sum, the sum of x [n] squared, in double precision. scratch: [kSquareParts]
  void (*sum_of_squares)(const void* x, int64_t n, double* scratch, double* sum);
};
inline constexpr int64_t kSquareParts = 1024;
inline constexpr int64_t kMostTotals = 2;

}  // namespace fsdp::kernels
