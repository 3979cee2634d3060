#pragma once

// Weight matrices in 4 or 8 bits, for weights that are not trained (Dettmers et al.: QLoRA, 2023, section 3).
// The elements of a matrix, row by row, form blocks of 64, each divided by its largest magnitude:
//
//   nf4    an element is the nearest of 16 quantiles of a normal distribution; the magnitudes, less their
//          mean, are themselves 8-bit numbers, in groups of 256 (double quantization): 4.13 bits an element.
//          The numbers are bitsandbytes'.
//   int8   an element is a multiple of 1/127; the magnitudes are fp32: 8.5 bits an element.
//
// A matrix is one tensor of bytes, which can be cut and gathered as such:
//
//   nf4    [elements / 2: first of two in the upper half] [magnitudes: 1 byte] [groups: fp32] [mean: fp32]
//   int8   [elements] [magnitudes: fp32]
//
// Products dequantize the numbers in tiles of rows, in the type of the other factor.

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

#include "base/util/enum_names.h"
#include "model/kernels/matmul.h"

namespace fsdp::kernels {

enum class Quantization { kNf4, kInt8 };
constexpr auto enum_names(Quantization) {
  return std::to_array<util::EnumName<Quantization>>(
      {{Quantization::kNf4, "nf4"}, {Quantization::kInt8, "int8"}});
}

/// Returns the bytes of a quantized matrix of `elements` elements.
int64_t quantized_bytes(Quantization form, int64_t elements);

/// Quantizes a weight. weight: fp32, bf16 or fp16, of any shape -> [quantized_bytes()] uint8. The bits do not
/// depend on the number of threads. Values that are not finite make their block not finite.
at::Tensor quantize(const at::Tensor& weight, Quantization form);

/// A quantized matrix [rows, columns]. Its `bytes` may have any alignment if they come from a checkpoint.
struct QuantizedWeight {
  at::Tensor bytes;
  int64_t rows = 0, columns = 0;
  Quantization form = Quantization::kNf4;
};

/// Returns rows [first, first + count) as [count, columns] of type fp32, bf16 or fp16.
at::Tensor dequantize(const QuantizedWeight& weight, int64_t first, int64_t count, at::ScalarType type);

/// Does the same by tensor operations, on any device.
at::Tensor dequantize_composed(const QuantizedWeight& weight, int64_t first, int64_t count,
                               at::ScalarType type);

/// These return x W^T, and dy W, without autograd. x: [N, columns], dy: [N, rows]
at::Tensor quantized_product(const at::Tensor& x, const QuantizedWeight& weight, Matmul matmul);
at::Tensor quantized_product_back(const at::Tensor& dy, const QuantizedWeight& weight, Matmul matmul);

/// Returns y = x W^T with the gradient of x only. x: [..., columns] -> [..., rows]
at::Tensor quantized_linear(const at::Tensor& x, const QuantizedWeight& weight, Matmul matmul);

}  // namespace fsdp::kernels
