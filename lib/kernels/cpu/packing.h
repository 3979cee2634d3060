#pragma once

// Factors of small products (kernels/block_product.h) in the order in which these read them: the first factor
// [M, K] by rows, the second packed: fp32 as it is, [K, N]; bf16 in pairs of rows, [K / 2, N, 2], as the
// instructions for it want. A K that is odd is padded with zeros in bf16.

#include <cstdint>

#include "kernels/cpu/loops.h"

namespace fsdp::kernels::cpu {

/// Rows of a tensor, `stride` elements apart.
struct StridedRows {
  const void* data = nullptr;
  int64_t stride = 0, rows = 0, width = 0;
};

struct Packing {
  /// A second factor: rows are K, up to `padded_rows` with zeros, and the width is N.
  void (*rows)(const StridedRows& from, int64_t padded_rows, void* to);
  /// A second factor: rows are N, and the width, in bf16 even, is K.
  void (*columns)(const StridedRows& from, void* to);
  /// A first factor: rows are K, up to `padded_rows` with zeros, and the width is M. to: [width, padded_rows]
  void (*transposed)(const StridedRows& from, int64_t padded_rows, void* to);
};

/// For the CPU at hand; null where it has no fast products for them.
const Packing* packing(Element element);

}  // namespace fsdp::kernels::cpu
