#pragma once

// The inner loops of the fused kernels on the CPU, over plain memory. loops.inc is compiled once for each
// level of instructions (AVX-512, AVX2, what every x86-64 and other CPUs have), and loops() gives those of
// the CPU at hand. Element types are fp32 and bf16; whatever the type, arithmetic is fp32.
//
// Rows are [rows, width], contiguous. Each loop runs on one thread.

#include <cstdint>

namespace fsdp::kernels::cpu {

enum class Element { kFloat, kBFloat16 };

struct RmsNormRows {
  const void* x = nullptr;         ///< [rows, width]
  const void* residual = nullptr;  ///< [rows, width]; null: none
  void* sum = nullptr;             ///< [rows, width]: x + residual, where there is one
  const void* weight = nullptr;    ///< [width]
  void* y = nullptr;               ///< [rows, width]
  float* reciprocal = nullptr;     ///< [rows]: 1 / sqrt(mean of squares + epsilon)
  int64_t rows = 0, width = 0;
  float epsilon = 0;
};

struct RmsNormGradRows {
  const void* dy = nullptr;  ///< [rows, width]
  const void* x = nullptr;   ///< [rows, width]: what was normed
  const void* weight = nullptr;
  const float* reciprocal = nullptr;
  const void* dsum = nullptr;  ///< [rows, width]: a gradient of x by another way; null: none
  void* dx = nullptr;          ///< [rows, width]
  float* dweight = nullptr;    ///< [width], is added to
  int64_t rows = 0, width = 0;
};

struct LayerNormRows {
  const void* x = nullptr;                        ///< [rows, width]
  const void* residual = nullptr;                 ///< [rows, width]; null: none
  void* sum = nullptr;                            ///< [rows, width]: x + residual, where there is one
  const void *weight = nullptr, *bias = nullptr;  ///< [width]
  void* y = nullptr;                              ///< [rows, width]
  float *mean = nullptr, *reciprocal = nullptr;   ///< [rows]; 1 / sqrt(variance + epsilon)
  int64_t rows = 0, width = 0;
  float epsilon = 0;
};

struct LayerNormGradRows {
  const void* dy = nullptr;  ///< [rows, width]
  const void* x = nullptr;   ///< [rows, width]: what was normed
  const void* weight = nullptr;
  const float *mean = nullptr, *reciprocal = nullptr;
  const void* dsum = nullptr;                  ///< [rows, width]: a gradient of x by another way; null: none
  void* dx = nullptr;                          ///< [rows, width]
  float *dweight = nullptr, *dbias = nullptr;  ///< [width], are added to
  int64_t rows = 0, width = 0;
};

struct BiasGeluRows {
  const void* x = nullptr;     ///< [rows, width]
  const void* bias = nullptr;  ///< [width]
  void* y = nullptr;           ///< [rows, width]: gelu(x + bias)
  int64_t rows = 0, width = 0;
};

struct BiasGeluGradRows {
  const void* dy = nullptr;    ///< [rows, width]
  const void* x = nullptr;     ///< [rows, width]
  const void* bias = nullptr;  ///< [width]
  void* dx = nullptr;          ///< [rows, width]
  float* dbias = nullptr;      ///< [width], is added to
  int64_t rows = 0, width = 0;
};

struct RotaryRows {
  const void* x = nullptr;     ///< [rows, heads, head_dim]
  void* y = nullptr;           ///< the same shape; may be x
  const float* cos = nullptr;  ///< [tokens, head_dim]; row r is token (first + r) % tokens
  const float* sin = nullptr;
  int64_t first = 0, rows = 0, tokens = 0, heads = 0, head_dim = 0;
  bool back = false;  ///< rotates by the negative angle
};

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
  void (*swiglu_backward)(const void* dy, const void* gate, const void* up, void* dgate, void* dup,
                          int64_t n);
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
