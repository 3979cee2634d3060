#pragma once

// The inner loops of kernels on the CPU, over plain memory. loops.inc is compiled once for each level of
// instructions (AVX-512, AVX2, and the baseline of x86-64 and of other CPUs), and loops() returns the loops
// for this CPU. Each loop runs on one thread.

#include <cstdint>

#include "model/kernels/rows.h"

namespace fsdp::kernels::cpu {

using kernels::Element;

struct CrossEntropyRows {
  void* logits = nullptr;  ///< [rows, vocabulary]; unless `scale` is 0, overwritten with its gradient
  const int64_t* targets = nullptr;  ///< [rows]
  int64_t rows = 0, vocabulary = 0;
  float scale = 0;  ///< factor of the gradient
  float label_smoothing = 0, z_loss = 0;
  // These have the meaning that they have in LossRows.
  int64_t first = 0, whole = 0;
  RowStatistics* found = nullptr;
  const RowStatistics* known = nullptr;
};

/// Elements of Adam whose indices ascend by one, without overflow.
struct RoundedAdamRun {
  RoundedAdamElements elements;
  uint32_t index = 0;  ///< lower 32 bits of the first element's index
  uint32_t exp_avg_keys[2] = {}, exp_avg_sq_keys[2] = {};
};

struct Loops {
  const char* name;
  void (*rms_norm)(const NormRows&);
  void (*rms_norm_backward)(const NormGradRows&);
  void (*layer_norm)(const NormRows&);
  void (*layer_norm_backward)(const NormGradRows&);
  void (*rotary)(const RotaryRows&);
  /// y = silu(gate) * up, [n]
  void (*swiglu)(const SwiGluRows&);
  void (*swiglu_backward)(const SwiGluGradRows&);
  void (*bias_gelu)(const BiasGeluRows&);
  void (*bias_gelu_backward)(const BiasGeluGradRows&);
  /// Returns the sum over rows of (1 - e) * -log p[target] + e * mean of -log p + z * log(sum of exp)^2, with
  /// p = softmax(logits), e = label_smoothing, z = z_loss.
  double (*cross_entropy)(const CrossEntropyRows&);
  double (*sum_of_squares)(const void* x, int64_t n);
  /// Adds the sum of the rows of x to sums, [width].
  void (*add_rows)(const void* x, float* sums, int64_t rows, int64_t width);
  /// Adam's step, for the type of the gradient.
  void (*adam)(const AdamElements&, const AdamNumbers&);
  void (*rounded_adam)(const RoundedAdamRun&, const AdamNumbers&);
};

// ---- factors of small products (model/kernels/block_product.h)
//
// The left factor [M, K] is read by rows. The right factor is packed as its instructions need it: fp32
// unchanged, [K, N], bf16 in pairs of rows, [K / 2, N, 2], with zeros added if K is odd, or, for instructions
// of fp32, widened, [K, N].

/// Rows of a tensor, `stride` elements apart.
struct StridedRows {
  const void* data = nullptr;
  int64_t stride = 0, rows = 0, width = 0;
};

/// c (+)= a b in fp32. c: [m, n], a: [m, k], b: [k, n], rows `stride_...` elements apart.
struct ProductTile {
  const float* a = nullptr;
  const float* b = nullptr;
  float* c = nullptr;
  int64_t m = 0, n = 0, k = 0;
  int64_t stride_a = 0, stride_b = 0, stride_c = 0;
  bool adds = false;
};

struct Packing {
  /// Packs a right factor of K rows, padded with zeros to `padded_rows`, of width N.
  void (*rows)(const StridedRows& from, int64_t padded_rows, void* to);
  /// Packs a right factor of N rows of width K, which is even in pairs.
  void (*columns)(const StridedRows& from, void* to);
  /// Packs a left factor of K rows, padded with zeros to `padded_rows`, of width M. to: [width, padded_rows]
  void (*transposed)(const StridedRows& from, int64_t padded_rows, void* to);
  /// Multiplies. Null: oneDNN's small product is the one to use.
  void (*product)(const ProductTile&);
};

// ---- attention between its matrix products (model/kernels/attention.h)
//
// A tile is some queries by some keys of one head. Query r of a tile attends to the keys c <= diagonal + r
// and, with a window, c > diagonal + r - window. With a cap, a score s counts as cap tanh(scale s / cap), not
// as scale s.

/// Converts one tile of scores to factors of the values.
struct SoftmaxTile {
  float* scores = nullptr;  ///< [queries, keys]; a cap changes them
  void* factors = nullptr;  ///< [queries, padded]: e^(scale * score - most); 0 for unseen keys
  float* most = nullptr;    ///< [queries]: largest scale * score of the tiles so far
  float* sum = nullptr;     ///< [queries]: sum of the factors so far
  float* output = nullptr;  ///< [queries, width]: sum over earlier tiles, to be rescaled
  int64_t queries = 0, keys = 0, padded = 0, width = 0, diagonal = 0;
  int64_t window = 0;  ///< 0: none
  float scale = 0;
  float cap = 0;  ///< 0: none
};

/// Finishes the rows of a block after all its tiles.
struct FinishedRows {
  const float* output = nullptr;  ///< [queries, width]
  const float* most = nullptr;
  const float* sum = nullptr;
  void* y = nullptr;  ///< [queries, width], rows `stride` apart: output / sum
  int64_t stride = 0;
  float* log_sums = nullptr;  ///< [queries]: most + log(sum)
  int64_t queries = 0, width = 0;
};

/// Converts one tile of backward, transposed: scores and dfactors to factors and dscores.
struct GradientTile {
  const float* scores = nullptr;     ///< [keys, queries]
  const float* dfactors = nullptr;   ///< [keys, queries]
  const float* log_sums = nullptr;   ///< [queries]
  const float* products = nullptr;   ///< [queries]: row products of the output and its gradient
  void* factors = nullptr;           ///< [keys, padded_queries]
  void* dscores = nullptr;           ///< [keys, padded_queries]
  void* dscores_by_query = nullptr;  ///< [queries, padded_keys]
  int64_t queries = 0, padded_queries = 0, keys = 0, padded_keys = 0, diagonal = 0;
  int64_t window = 0;  ///< 0: none
  float scale = 0;
  float cap = 0;  ///< 0: none
};

struct AttentionLoops {
  void (*softmax)(const SoftmaxTile&);
  void (*finish)(const FinishedRows&);
  void (*gradient)(const GradientTile&);
  /// Computes out, [rows]: sums over the rows of a * b.
  void (*row_products)(const StridedRows& a, const StridedRows& b, float* out);
  /// Rounds x, [rows, width], to y, [rows, width], rows `stride` apart.
  void (*round)(const float* x, void* y, int64_t stride, int64_t rows, int64_t width);
};

// ---- stochastic rounding (model/kernels/stochastic_rounding.h)

/// Elements whose indices ascend by one, without overflow.
struct RoundedRun {
  const float* values = nullptr;  ///< [n]
  uint16_t* to = nullptr;         ///< [n]
  int64_t n = 0;
  uint32_t index = 0;  ///< lower 32 bits of the first element's index
  uint32_t keys[2] = {};
};

// ---- quantized matrices (model/kernels/quantized.h)

inline constexpr int64_t kQuantizedBlock = 64, kMagnitudesOfGroup = 256;
/// Quantiles of a normal distribution (QLoRA, appendix E).
inline constexpr float kNf4Values[16] = {-1.0F,
                                         -0.6961928009986877F,
                                         -0.5250730514526367F,
                                         -0.39491748809814453F,
                                         -0.28444138169288635F,
                                         -0.18477343022823334F,
                                         -0.09105003625154495F,
                                         0.0F,
                                         0.07958029955625534F,
                                         0.16093020141124725F,
                                         0.24611230194568634F,
                                         0.33791524171829224F,
                                         0.44070982933044434F,
                                         0.5626170039176941F,
                                         0.7229568362236023F,
                                         1.0F};

/// Elements [begin, end) of a matrix of `elements` elements. Nothing has to be aligned.
struct QuantizedRun {
  bool is_nf4 = true;
  const uint8_t* values = nullptr;
  const uint8_t* magnitudes = nullptr;      ///< nf4: 1 byte each; otherwise fp32
  const uint8_t* groups = nullptr;          ///< nf4: fp32
  const float* magnitude_values = nullptr;  ///< nf4: values of the bytes, [256]
  float mean = 0;
  int64_t elements = 0, begin = 0, end = 0;
  void* to = nullptr;  ///< [end - begin]
};

// ---- exact sums of squares (model/kernels/exact_squares.h)

/// Indices of the counts: multiples of each unit, blocks by their largest unit, blocks that are not finite.
struct SquareCounts {
  static constexpr int kUnits = 22, kBits = 28, kKept = 3;
  static constexpr int kSeen = kUnits, kNotFinite = 2 * kUnits, kNumbers = 2 * kUnits + 1;
  /// Exponent of unit i as a power of 2. The smallest square, 2^-298, is a multiple of unit 0, 2^-324.
  static constexpr int exponent(int unit) { return kBits * unit - 324; }
};

// ---- 8-bit codes (model/kernels/block_codes.h); [0]: unsigned, [1]: signed

struct BlockCoding {
  /// Encodes a block of n numbers; returns its scale.
  float (*encode)(const float* from, uint8_t* codes, int64_t n);
  void (*decode)(const uint8_t* codes, float scale, float* to, int64_t n);
};

/// All loops of one level, by Element (products: fp32 and bf16), and the roundings to bf16 and to fp16.
struct Level {
  Loops loops[3];
  Packing packing[2];
  Packing widening;
  AttentionLoops attention[2];
  void (*round[2])(const RoundedRun&);
  void (*dequantize[3])(const QuantizedRun&);
  void (*count_squares)(const float* x, int64_t n, int64_t* counts);
  void (*divide)(float* x, int64_t n, float divisor);
  void (*round_to_bfloat16)(const float* from, uint16_t* to, int64_t n);
  BlockCoding coding[2];
};

/// These return the loops for this CPU. All but the first return null without fast small products.
const Loops& loops(Element element);
const Packing* packing(Element element);
/// Returns the packing of bf16 factors as fp32. Null without fast small products of fp32.
const Packing* widening();
const AttentionLoops* attention_loops(Element element);

void round_stochastically(bool to_half, const RoundedRun& run);

/// Adds the counts of x, [n], to `counts`, [SquareCounts::kNumbers].
void count_squares(const float* x, int64_t n, int64_t* counts);

/// Divides x, [n], by divisor.
void divide(float* x, int64_t n, float divisor);

/// Rounds to nearest.
void round_to_bfloat16(const float* from, uint16_t* to, int64_t n);

/// These encode a block of n numbers, whose scale the first returns, and decode it.
float encode_run(bool is_signed, const float* from, uint8_t* codes, int64_t n);
void decode_run(bool is_signed, const uint8_t* codes, float scale, float* to, int64_t n);

/// Dequantizes to elements of this type.
void dequantize(Element element, const QuantizedRun& run);

}  // namespace fsdp::kernels::cpu
