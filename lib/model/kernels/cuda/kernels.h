#pragma once

// The kernels for CUDA devices, which enqueue on the current stream of the current device. cuda_absent.cpp
// replaces them in programs built without CUDA.

#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Float8_e5m2.h>

#include <cstdint>
#include <vector>

#include "model/kernels/kernel_table.h"
#include "model/kernels/outcome_rule.h"
#include "model/kernels/rows.h"

namespace fsdp::kernels::cuda {

/// Returns the kernels; null in programs built without CUDA.
const RowKernels* row_kernels(Element element);

/// Parts of the table. Each is defined in a .cu file of its own, which compile in parallel.
template <typename T>
void put_norms(RowKernels& table);
template <typename T>
void put_activations(RowKernels& table);
template <typename T>
void put_losses(RowKernels& table);

/// Adds rows of gradients to the table rows of their ids.
struct EmbeddingGradRows {
  const void* dy = nullptr;        ///< [rows, width]
  const int64_t* ids = nullptr;    ///< [rows], ascending
  const int64_t* order = nullptr;  ///< [rows]: ids[i] belongs to row order[i] of dy
  void* table = nullptr;           ///< [.., width]; rows without an id do not change
  bool table_is_fp32 = false;      ///< otherwise dy's type
  bool adds = false;               ///< whether to add to the former values, which are fp32
  int64_t rows = 0, width = 0;
};
void embedding_backward(Element element, const EmbeddingGradRows& rows);

/// Gradients of heads to be side by side (model/kernels/joined_linear.h).
struct JoinedGradients {
  /// Heads of each token, [sequences, tokens, heads, head_dim], with these strides in elements; that of the
  /// last dimension is 1.
  struct Heads {
    const void* x = nullptr;
    int64_t heads = 0, of_sequence = 0, of_token = 0, of_head = 0;
  };
  Heads queries, keys, values;
  void* y = nullptr;           ///< [sequences, tokens, all heads, head_dim]
  const float* cos = nullptr;  ///< [tokens, head_dim], for join_rotary()
  const float* sin = nullptr;
  int64_t sequences = 0, tokens = 0, head_dim = 0;
};
/// Turns those of queries and keys back.
void join_rotary(Element element, const JoinedGradients& gradients);
/// Also sums over the rows of y, part by part, as RowKernels::add_rows() does. Requires: sequences lie one
/// after another. sums: [parts, width]; null: not needed
void join_rows(Element element, const JoinedGradients& gradients, float* sums, const RowParts& parts);

/// Arguments of dropout() (model/kernels/fused.h) for x, [rows, width], one piece of a row each.
struct DropoutRows {
  const void* x = nullptr;
  void* y = nullptr;
  int64_t rows = 0, width = 0;
  uint64_t key = 0;
  int64_t first_row = 0;
  RowPieces pieces = {};
  double p = 0;
};
void dropout(Element element, const DropoutRows& rows);

/// Arguments of Adam (model/kernels/adam.h), in as few launches as the size of a launch's arguments permits.
/// All gradients have the element type.
struct AdamStep {
  std::vector<AdamElements> parts = {};
  std::vector<RoundedAdamElements> rounded_parts = {};
  std::vector<CodedAdamElements> coded_parts = {};
  AdamNumbers numbers;
  /// Replaces numbers.gradient_scale if not null. NaN: nothing is updated.
  const double* gradient_scale = nullptr;
  bool copies_are_half = false;  ///< whether all copies are fp16; otherwise bf16
};
void adam(Element gradient, const AdamStep& step);

/// Arguments of the decision on a step's outcome (model/kernels/step_outcome.h).
struct OutcomeDecision {
  const double* sums = nullptr;        ///< [2]
  const double* local_loss = nullptr;  ///< [1]
  OutcomeRule rule;
  StepOutcome* outcome = nullptr;
};
void decide_outcome(const OutcomeDecision& decision);

/// The largest number of an 8-bit type.
template <typename To>
inline constexpr float kLargestNumber = 448;
template <>
inline constexpr float kLargestNumber<c10::Float8_e5m2> = 57344;

/// Lower bound of a tensor's largest magnitude, so that the scale of zeros is finite; torchao's value.
inline constexpr float kLeastMagnitude = 1e-12F;

/// Arguments of rounding (model/kernels/float8.h) for x, [rows, width] bf16; both are multiples of 16.
/// Outputs are aligned to 16 bytes.
struct Float8Rounding {
  const void* x = nullptr;
  const float* largest = nullptr;  ///< [1], or by rows [rows]
  void* values = nullptr;          ///< [rows, width]; null: not requested
  void* transposed = nullptr;      ///< [width, rows]; null: not requested
  float* inverse_scale = nullptr;  ///< [1], or by rows [rows]
  int64_t rows = 0, width = 0;
  bool is_e5m2 = false;  ///< otherwise e4m3
  /// Whether `values` has a scale for each row, and `transposed` one for each of its rows, all powers of 2.
  /// Only what is requested has magnitudes and scales. e4m3 only.
  bool by_rows = false;
  const float* largest_of_columns = nullptr;  ///< [width]
  float* inverse_scale_of_columns = nullptr;  ///< [width]
};
void round_to_float8(const Float8Rounding& matrix);

}  // namespace fsdp::kernels::cuda
