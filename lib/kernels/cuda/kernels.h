#pragma once

// What there is on CUDA devices. Everything is enqueued on the current stream of the current device.
// cuda_absent.cpp stands in where the program is built without CUDA.

#include <cstdint>

#include "kernels/kernel_table.h"

namespace fsdp::kernels::cuda {

/// Null where the program is built without CUDA.
const RowKernels* row_kernels(Element element);

/// Rows of gradients to be added up by the row of the table that they belong to.
struct EmbeddingGradRows {
  const void* dy = nullptr;        ///< [rows, width]
  const int64_t* ids = nullptr;    ///< [rows], ascending
  const int64_t* order = nullptr;  ///< [rows]: ids[i] is that of row order[i] of dy
  void* table = nullptr;           ///< [.., width]; rows without an id are left as they are
  bool table_is_fp32 = false;      ///< else of dy's type
  bool adds = false;               ///< to what is there, which is fp32
  int64_t rows = 0, width = 0;
};
void embedding_backward(Element element, const EmbeddingGradRows& rows);

/// kernels/dropout.h for x [rows, width].
struct DropoutRows {
  const void* x = nullptr;
  void* y = nullptr;
  int64_t rows = 0, width = 0;
  uint64_t key = 0;
  int64_t first_row = 0;
  double p = 0;
};
void dropout(Element element, const DropoutRows& rows);

/// kernels/adam.h, all [n]; the gradient has the element type.
struct AdamElements {
  float* value = nullptr;
  const void* gradient = nullptr;
  float *exp_avg = nullptr, *exp_avg_sq = nullptr;
  int64_t n = 0;
  AdamNumbers numbers;
};
void adam(Element gradient, const AdamElements& elements);

/// kernels/float8.h for x [rows, width] bf16; both are multiples of 16. What is written is aligned to 16
/// bytes.
struct Float8Rounding {
  const void* x = nullptr;
  const float* largest = nullptr;  ///< [1]
  void* values = nullptr;          ///< [rows, width]; null: not wanted
  void* transposed = nullptr;      ///< [width, rows]; null: not wanted
  float* inverse_scale = nullptr;  ///< [1]
  int64_t rows = 0, width = 0;
  bool is_e5m2 = false;  ///< else e4m3
};
void round_to_float8(const Float8Rounding& matrix);

}  // namespace fsdp::kernels::cuda
