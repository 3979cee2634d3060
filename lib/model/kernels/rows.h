#pragma once

// The arguments of kernels over rows, on all devices. Rows are [rows, width], contiguous unless there is a
// stride. Element types are fp32, bf16 and fp16, and arithmetic is in fp32.
//
// Sums over rows, `dweight` and `dbias`, are [width] for the loops of one thread (cpu/loops.h), which add to
// them, and [parts, width] for the kernels of a device (kernel_table.h).

#include <cstdint>

namespace fsdp::kernels {

enum class Element { kFloat, kBFloat16, kHalf };

/// Rows that are parts of longer rows: each consists of `count` pieces of equal length. Piece i is the values
/// of the longer row from begins[i] on.
struct RowPieces {
  int64_t count = 1;  ///< 1 or 2
  int64_t begins[2] = {0, 0};
};

/// Rows of RMSNorm or LayerNorm. bias, mean and dbias are null for RMSNorm.
struct NormRows {
  const void* x = nullptr;                        ///< [rows, width]
  const void* residual = nullptr;                 ///< [rows, width]; null: none
  void* sum = nullptr;                            ///< [rows, width]: x + residual, if there is a residual
  const void *weight = nullptr, *bias = nullptr;  ///< [width]
  void* y = nullptr;                              ///< [rows, width]
  float* mean = nullptr;                          ///< [rows]
  float* reciprocal = nullptr;  ///< [rows]: 1 / sqrt(variance, or mean of squares, + epsilon)
  int64_t rows = 0, width = 0;
  float epsilon = 0;
};

struct NormGradRows {
  const void* dy = nullptr;  ///< [rows, width]
  const void* x = nullptr;   ///< [rows, width]: the norm's input
  const void* weight = nullptr;
  const float *mean = nullptr, *reciprocal = nullptr;
  const void* dsum = nullptr;  ///< [rows, width]: x's gradient from elsewhere, to be added; null: none
  void* dx = nullptr;          ///< [rows, width]
  float *dweight = nullptr, *dbias = nullptr;
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
  float* dbias = nullptr;
  int64_t rows = 0, width = 0;
};

/// Rows of gate and up, which may be side by side in one matrix.
struct SwiGluRows {
  const void *gate = nullptr, *up = nullptr;  ///< [rows, width], each row `stride` elements after the former
  void* y = nullptr;                          ///< [rows, width]
  int64_t rows = 0, width = 0, stride = 0;
};

struct SwiGluGradRows {
  const void* dy = nullptr;                   ///< [rows, width]
  const void *gate = nullptr, *up = nullptr;  ///< [rows, width], each row `stride` elements after the former
  void *dgate = nullptr, *dup = nullptr;      ///< [rows, width] with the same stride
  void* y = nullptr;                          ///< [rows, width]: the result computed again; null: not needed
  int64_t rows = 0, width = 0, stride = 0;
};

struct RotaryRows {
  const void* x = nullptr;  ///< [rows, heads, head_dim], each row `stride` elements after the former
  void* y = nullptr;        ///< [rows, heads, head_dim] with the same stride; may be x
  const float* cos =
      nullptr;  ///< [tokens, head_dim]; row r is token (first + r) % tokens; the halves are equal
  const float* sin = nullptr;
  int64_t first = 0, rows = 0, tokens = 0, heads = 0, head_dim = 0, stride = 0;
  bool back = false;  ///< whether to rotate by the negative angles
};

/// The target of a row that is ignored.
inline constexpr int64_t kIgnored = -100;

/// Statistics that determine loss and gradient of a row of logits. Those of a row's parts can be combined.
struct RowStatistics {
  double most = 0;       ///< largest logit
  double sum = 0;        ///< sum of exp(logit - most)
  double of_target = 0;  ///< logit of the target; 0 in a part without it
  double total = 0;      ///< sum of the logits; 0 without label smoothing
};
inline constexpr int kRowStatistics = sizeof(RowStatistics) / sizeof(double);

/// Losses of rows of logits. If a target is kIgnored, loss and gradient are 0.
///
/// The rows may be a part of the vocabulary (VocabularyPart in fused.h). One call then writes the part's
/// statistics to `found`, and another receives those of the whole rows as `known`.
struct LossRows {
  /// Logits [rows, vocabulary], row r beginning at element r * stride. If `differentiates`, they are
  /// overwritten with their gradient / counted.
  void* logits = nullptr;
  int64_t stride = 0;
  const int64_t* targets = nullptr;  ///< [rows], less than the size of the whole vocabulary
  double* losses = nullptr;          ///< [rows]
  const double* counted = nullptr;   ///< number of rows of the whole batch that count, at least 1
  int64_t rows = 0, vocabulary = 0;
  bool differentiates = false;
  float factor = 1;                    ///< factor of the gradient
  const float* row_factors = nullptr;  ///< [rows]: more of them; null: none
  float label_smoothing = 0, z_loss = 0;
  int64_t first = 0;                     ///< token that the first column is for
  int64_t whole = 0;                     ///< size of the whole vocabulary; 0: these columns are all
  RowStatistics* found = nullptr;        ///< [rows]; if not null, nothing else is written
  const RowStatistics* known = nullptr;  ///< [rows]; null: those of these columns
};

/// The sum over the parts of sums over rows.
struct PartTotal {
  float* sums = nullptr;  ///< [parts, width]; overwritten
  int64_t parts = 0, width = 0;
  void* to = nullptr;   ///< [width]
  bool to_fp32 = true;  ///< otherwise `to` has the element type of the kernel table
  bool adds = false;    ///< whether to add to the former value, in fp32
};

/// The numbers of a step of Adam, rounded to fp32.
struct AdamNumbers {
  float gradient_scale = 1;
  float beta1 = 0, one_minus_beta1 = 0, beta2 = 0, one_minus_beta2 = 0;
  float eps = 0;
};

/// Numbers that depend on the parameter group of the elements and on the number of their steps, t.
struct AdamRates {
  float keep = 1;               ///< 1 - lr * weight_decay in AdamW
  float decay = 0;              ///< weight_decay in Adam
  float step_size = 0;          ///< lr / (1 - beta1^t)
  float second_correction = 0;  ///< sqrt(1 - beta2^t)
};

/// Elements that Adam updates with the same rates, all [n].
template <typename Average>
struct AdamElementsOf {
  float* value = nullptr;
  const void* gradient = nullptr;
  Average *exp_avg = nullptr, *exp_avg_sq = nullptr;
  int64_t n = 0;
  AdamRates rates = {};
  void* copy = nullptr;  ///< gets the new values in 16 bits if it is not null
};
using AdamElements = AdamElementsOf<float>;

/// Indices of elements in their tensor, which decide how they are rounded (stochastic_rounding.h).
struct RoundedPlaces {
  int64_t origin = 0;  ///< index in the tensor of the first element of a part of it
  int64_t first = 0;   ///< index in the part of the first of the elements
  /// Elements of a row of the part, and elements of the tensor between its rows; without gaps all are a row.
  int64_t length = 0, gap = 0;
};

/// Elements whose averages are bf16, rounded stochastically.
struct RoundedAdamElements : AdamElementsOf<uint16_t> {
  RoundedPlaces places = {};
  uint64_t keys[2] = {};  ///< random numbers of the tensor, for either average
};

/// Number of elements of a block of codes.
inline constexpr int64_t kCodedBlock = 256;

/// Elements whose averages are codes (block_codes.h), exp_avg signed, exp_avg_sq not. They begin a block.
struct CodedAdamElements : AdamElementsOf<uint8_t> {
  float *exp_avg_scales = nullptr, *exp_avg_sq_scales = nullptr;
};

/// The factors of the hash by which elements are rounded, and the factor of the upper half of an index.
inline constexpr uint32_t kFirstHashFactor = 0x7feb352dU, kSecondHashFactor = 0x846ca68bU,
                          kOfHighWord = 0x9e3779b9U;

}  // namespace fsdp::kernels
