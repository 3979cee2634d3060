#pragma once

// Matrix products in blocks by the cores' matrix units (Intel AMX; cpu/tiles.h). libtorch's oneDNN uses them
// for bf16 only.
//
// A number in fp32 is split into three parts in bf16, and a product into six, with an error as of sums in
// fp32. On an Intel Xeon (family 6, model 207), one thread, 1024 rows of 512 to 1376 elements, in GFLOP/s:
// fp32 230, by vectors (block_product.h) 150; bf16 1200, by vectors 75. The matrix unit reaches 2450 on random
// numbers (3270 on zeros, which take less power), and 1980 with blocks that lie in the second-level cache and
// results that are rounded and stored there; the rest is the time of memory.

#include <ATen/core/Tensor.h>

#include <vector>

namespace fsdp::kernels {

/// Parts of a number in fp32: 3 (the default), or 2, which keep 16 bits, at half the work. For the whole
/// process; to be set between steps.
void set_float32_parts(int parts);
int float32_parts();

/// Whether the matrix unit, if any (util::has_matrix_unit()), multiplies x: fp32 and bf16.
bool can_multiply_by_tiles(const at::Tensor& x);

/// Each left factor times each right factor, summed over terms; each factor is packed once.
struct TileProducts {
  /// a: [m, k], b: [k, n], each with contiguous rows or columns; all of one type that can_multiply_by_tiles(). An
  /// undefined b adds nothing to its results; those of the first term are defined.
  struct Term {
    std::vector<at::Tensor> lefts, rights;
  };

  /// c = sum of a b (+ bias) or, with `adds`, c += sum of a b (+ bias).
  struct Result {
    at::Tensor c;  ///< [m, n], contiguous, fp32 or the factors' type
    bool adds = false;
    at::Tensor bias = {};  ///< [n], contiguous, or undefined; only with c in bf16
  };

  std::vector<Term> terms = {};      ///< of as many lefts and rights, of the same m and n; k differs
  std::vector<Result> results = {};  ///< [lefts][rights], of one type, without overlap
};
void multiply_by_tiles(const TileProducts& products);

}  // namespace fsdp::kernels
