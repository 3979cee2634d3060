#pragma once

// Matrix products in blocks by the cores' matrix units (Intel AMX; cpu/tiles.h), also for fp32.
//
// A number in fp32 is split into three parts in bf16, a product into six, with an error like fp32 sums'.

#include <ATen/core/Tensor.h>

#include <vector>

namespace fsdp::kernels {

/// Sets the number of parts of an fp32 number: 3 (the default), or 2, which keep 16 bits, at half the work.
/// Applies to the whole process. Must be called between steps.
void set_float32_parts(int parts);
int float32_parts();

/// Whether the matrix unit, if any (util::has_matrix_unit()), multiplies x: fp32 and bf16.
bool can_multiply_by_tiles(const at::Tensor& x);

/// Products of each left factor with each right factor, summed over terms. Each factor is packed once.
struct TileProducts {
  /// Factors a: [m, k], b: [k, n], each with contiguous rows or columns, all of one type that
  /// can_multiply_by_tiles(). An undefined b adds nothing to its results. The factors of the first term are
  /// defined.
  struct Term {
    std::vector<at::Tensor> lefts, rights;
  };

  /// A result c = sum of a b (+ bias) or, with `adds`, c += sum of a b (+ bias).
  struct Result {
    at::Tensor c;  ///< [m, n], contiguous, fp32 or the factors' type
    bool adds = false;
    at::Tensor bias = {};  ///< [n], contiguous, or undefined; only with c in bf16
  };

  /// Terms with equal numbers of lefts and rights, of the same m and n; k differs.
  std::vector<Term> terms = {};
  std::vector<Result> results = {};  ///< results [lefts][rights], of one type, without overlap
};
void multiply_by_tiles(const TileProducts& products);

}  // namespace fsdp::kernels
