#pragma once

// The inner loops of the fused kernels on the CPU, over plain memory. loops.inc is compiled once for each
// level of instructions (AVX-512, AVX2, what every x86-64 and other CPUs have), and loops() gives those of
// the CPU at hand. Each loop runs on one thread.

#include <cstdint>

#include "kernels/rows.h"

namespace fsdp::kernels::cpu {

using kernels::Element;

struct CrossEntropyRows {
  void* logits = nullptr;            ///< [rows, vocabulary]; becomes its gradient where `scale` is not 0
  const int64_t* targets = nullptr;  ///< [rows]
  int64_t rows = 0, vocabulary = 0;
  float scale = 0;  ///< of the gradient
  float label_smoothing = 0, z_loss = 0;
};

struct Loops {
  const char* name;
  void (*rms_norm)(const RmsNormRows&);
  void (*rms_norm_backward)(const RmsNormGradRows&);
  void (*layer_norm)(const LayerNormRows&);
  void (*layer_norm_backward)(const LayerNormGradRows&);
  void (*rotary)(const RotaryRows&);
  /// y = silu(gate) * up, [n]
  void (*swiglu)(const void* gate, const void* up, void* y, int64_t n);
  void (*swiglu_backward)(const SwiGluGrad&);
  void (*bias_gelu)(const BiasGeluRows&);
  void (*bias_gelu_backward)(const BiasGeluGradRows&);
  /// Returns the sum over rows of (1 - e) * -log p[target] + e * mean of -log p + z * log(sum of exp)^2, with
  /// p = softmax(logits), e = label_smoothing, z = z_loss.
  double (*cross_entropy)(const CrossEntropyRows&);
  double (*sum_of_squares)(const void* x, int64_t n);
  /// sums [width] += the sum of the rows of x
  void (*add_rows)(const void* x, float* sums, int64_t rows, int64_t width);
};

/// For the CPU at hand.
const Loops& loops(Element element);

}  // namespace fsdp::kernels::cpu
