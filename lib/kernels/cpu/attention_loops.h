#pragma once

// The inner loops of attention beside its matrix products (kernels/attention.h), as cpu/loops.h has them for
// the other kernels. A tile is a block of some queries and some keys of one head. Query r of a tile sees its
// keys c <= diagonal + r.

#include <cstdint>

#include "kernels/cpu/loops.h"
#include "kernels/cpu/packing.h"

namespace fsdp::kernels::cpu {

/// One tile of scores becomes factors of the values.
struct SoftmaxTile {
  const float* scores = nullptr;  ///< [queries, keys]
  void* factors = nullptr;        ///< [queries, padded]: e^(scale * score - most); 0 where nothing is seen
  float* most = nullptr;          ///< [queries]: largest scale * score of the tiles so far
  float* sum = nullptr;           ///< [queries]: of the factors so far
  float* output = nullptr;        ///< [queries, width]: what earlier tiles gave, to be rescaled
  int64_t queries = 0, keys = 0, padded = 0, width = 0, diagonal = 0;
  float scale = 0;
};

/// The rows of a block when all its tiles are done.
struct FinishedRows {
  const float* output = nullptr;  ///< [queries, width]
  const float* most = nullptr;
  const float* sum = nullptr;
  void* y = nullptr;  ///< [queries, width], rows `stride` apart: output / sum
  int64_t stride = 0;
  float* log_sums = nullptr;  ///< [queries]: most + log(sum)
  int64_t queries = 0, width = 0;
};

/// One tile of backward, transposed: of the scores and of the gradient of the factors come the factors and
/// the gradient of the scores.
struct GradientTile {
  const float* scores = nullptr;     ///< [keys, queries]
  const float* dfactors = nullptr;   ///< [keys, queries]
  const float* log_sums = nullptr;   ///< [queries]
  const float* products = nullptr;   ///< [queries]: of the output and its gradient
  void* factors = nullptr;           ///< [keys, padded_queries]
  void* dscores = nullptr;           ///< [keys, padded_queries]
  void* dscores_by_query = nullptr;  ///< [queries, padded_keys]
  int64_t queries = 0, padded_queries = 0, keys = 0, padded_keys = 0, diagonal = 0;
  float scale = 0;
};

struct AttentionLoops {
  void (*softmax)(const SoftmaxTile&);
  void (*finish)(const FinishedRows&);
  void (*gradient)(const GradientTile&);
  /// out [rows]: the sum over a row of a * b.
  void (*row_products)(const StridedRows& a, const StridedRows& b, float* out);
  /// y [rows, width], rows `stride` apart, rounded from x [rows, width].
  void (*round)(const float* x, void* y, int64_t stride, int64_t rows, int64_t width);
};

/// For the CPU at hand; null where it has no fast products for them.
const AttentionLoops* attention_loops(Element element);

}  // namespace fsdp::kernels::cpu
