#pragma once

// The seam between the fused kernels' autograd functions, which all devices share, and what computes on a
// device: one table of functions over all rows of contiguous tensors. On the CPU (cpu/row_kernels.cpp) they
// run the loops of cpu/loops.h on several threads; on CUDA devices (cuda/) they enqueue kernels on the
// current stream and return.

#include <cstdint>

#include "kernels/row_parts.h"
#include "kernels/rows.h"

namespace fsdp::kernels {

/// For one element type. Pointers are to memory of the device.
struct RowKernels {
  void (*rms_norm)(const RmsNormRows&);
  /// Into sums of parts; on the CPU, these are zeros before. Likewise below.
  void (*rms_norm_backward)(const RmsNormGradRows&, const RowParts&);
  void (*layer_norm)(const LayerNormRows&);
  void (*layer_norm_backward)(const LayerNormGradRows&, const RowParts&);
  void (*rotary)(const RotaryRows&);
  /// y = silu(gate) * up, [n]
  void (*swiglu)(const void* gate, const void* up, void* y, int64_t n);
  void (*swiglu_backward)(const SwiGluGrad&);
  void (*bias_gelu)(const BiasGeluRows&);
  void (*bias_gelu_backward)(const BiasGeluGradRows&, const RowParts&);
  /// sums [parts, width]: of the rows of x, part by part
  void (*add_rows)(const void* x, float* sums, const RowParts&);
  void (*total)(const PartTotal&);

  /// counted: the number of targets that are not kIgnored, at least 1
  void (*count_targets)(const int64_t* targets, int64_t rows, double* counted);
  void (*losses)(const LossRows&);
  /// mean: the sum of losses / counted
  void (*mean_loss)(const double* losses, int64_t rows, const double* counted, float* mean);
  /// x [n] *= *factor
  void (*scale)(void* x, int64_t n, const float* factor);

  /// *sum: the sum of x [n] squared, in double precision. scratch: [kSquareParts]
  void (*sum_of_squares)(const void* x, int64_t n, double* scratch, double* sum);
};
inline constexpr int64_t kSquareParts = 1024;

}  // namespace fsdp::kernels
