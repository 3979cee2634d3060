#pragma once

// Matrix products in blocks by the cores' matrix units (Intel AMX; cpu/tiles.h), which libtorch's oneDNN uses
// for bf16 alone.
//
// fp32 goes as the sum of three parts in bf16, in six products, with the error of a sum in fp32. On an Intel
// Xeon (family 6, model 207), one thread, 1024 rows of 512 to 1376 elements, in GFLOP/s: fp32 230, by vectors
// (block_product.h) 150; bf16 740, by vectors 75. The unit itself has 2300 with such numbers.

#include <ATen/core/Tensor.h>

#include <vector>

namespace fsdp::kernels {

/// Parts of a number in fp32: 3, or 2, which are 16 bits, at half the work. For the whole process, between
/// steps; 3 at first.
void set_float32_parts(int parts);
int float32_parts();

/// Whether the matrix unit multiplies this: on a CPU that has one (util::has_matrix_unit()), fp32 or bf16.
bool can_multiply_by_tiles(const at::Tensor& x);

/// Each of `lefts` times each of `rights`, of which each is packed once.
struct TileProducts {
  /// c = a b (+ bias), or is added to.
  struct Result {
    at::Tensor c;  ///< [m, n], contiguous, fp32, or bf16 if the factors are
    bool adds = false;
    at::Tensor bias = {};  ///< [n], contiguous, with c in bf16, or undefined
  };

  /// a: [m, k], b: [k, n], all of one type that can_multiply_by_tiles(); in each, rows or columns are
  /// contiguous.
  std::vector<at::Tensor> lefts = {}, rights = {};
  std::vector<Result> results = {};  ///< [lefts][rights], all of one type; none lies in another
};
void multiply_by_tiles(const TileProducts& products);

}  // namespace fsdp::kernels
