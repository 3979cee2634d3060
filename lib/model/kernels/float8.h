#pragma once

// Products with weight matrices in 8-bit floating point (Micikevicius et al.: FP8 formats for deep learning,
// 2022). All three are of rounded numbers:
//   y = x W^T, dx = dy W, dW = dy^T x,
// summed in fp32 and rounded to bf16 or, if numbers are scaled by tensors, to the type of the weight's
// gradient place (gradient_sink.h). Before numbers are rounded, they are multiplied by
//   scale = largest number of the type / largest magnitude,
// in fp32, at every use; nothing is kept between steps. Recipes of torchao:
//   "tensorwise"  the largest magnitude is that of the tensor. Input and weight are rounded to e4m3, the
//                 gradient of the output to e5m2.
//   "rowwise"     it is that of the numbers which a product sums with one another: of a row, or of a column
//                 for a transposed factor. All are rounded to e4m3, and the scale is the power of 2 below.
// Zeros stay zeros; factors that are not finite give results that are not finite.
//
// CUDA devices compute these products by cuBLASLt (at::_scaled_mm; libtorch has kernels of its own for
// "rowwise" on some GPUs), which needs the summed index last in both factors, so each tensor is rounded to
// one or two memory orders. The host never waits for the device. The CPU multiplies the same rounded numbers
// in fp32, slower than bf16, for tests.

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "model/kernels/matmul.h"

namespace fsdp::kernels {

/// The number of rows of x and both sizes of a weight must be multiples of this number.
inline constexpr int64_t kFloat8Multiple = 16;

/// Whether a weight of these sizes can be multiplied in 8 bits.
bool fits_float8(at::IntArrayRef weight);

/// Whether the product can be in 8 bits: bf16 on the CPU or a CUDA device, with sizes that fit. x: [..., in]
bool can_multiply_float8(const at::Tensor& x, const at::Tensor& weight);

/// Form of x that is kept for the gradients of the weights, unless backward computes x again. kRounded: its
/// numbers in 8 bits. kItself: x, where somebody else keeps it anyway.
enum class KeptInput { kRounded, kItself };

/// Part of a factor that has a scale of its own: the whole tensor, or a row.
enum class Float8Scaling { kTensor, kRow };

/// How layers multiply in 8 bits.
struct Float8Way {
  Float8Scaling scaling = Float8Scaling::kTensor;
  KeptInput kept = KeptInput::kRounded;
  Matmul matmul = Matmul::kMkl;  ///< of the CPU
};

/// Returns y_i = x W_i^T. x: [..., in], W_i: [out_i, in]. Requires: can_multiply_float8() of the weights.
std::vector<at::Tensor> float8_linears(const at::Tensor& x, const std::vector<at::Tensor>& weights,
                                       const Float8Way& way = {});

/// Returns float8_linears() side by side, computed by one product with the weights as one matrix, which may
/// have one scale: joined_linear() (model/kernels/joined_linear.h) in 8 bits. Requires: consecutive weights.
at::Tensor float8_joined_linear(const at::Tensor& x, const std::vector<at::Tensor>& weights,
                                const Float8Way& way = {});

/// Returns y = x W + b. x: [N, in], weight: [in, out], bias: [out], or none -> [N, out]
at::Tensor float8_transposed_linear(const at::Tensor& x, const at::Tensor& weight,
                                    const std::optional<at::Tensor>& bias, const Float8Way& way = {});

/// Whether GPUs of a compute capability, as in "9.0", have matrix units for 8-bit floats.
bool has_float8_units(const std::string& capability);

/// Throws Error(kUsage) for a GPU without such units. `key` is the config key that needs them.
void require_float8(const std::string& key, const at::Device& device);

/// A matrix rounded to 8 bits, in two memory orders. A number of x is one of these times the inverse scale.
/// [N, M]
struct Float8Matrix {
  at::Tensor values;                       ///< [N, M], contiguous; undefined if not requested
  at::Tensor transposed;                   ///< [M, N], contiguous; undefined if not requested
  at::Tensor inverse_scale;                ///< fp32 [], or [N, 1] of the rows
  at::Tensor inverse_scale_of_transposed;  ///< fp32 [], or [M, 1] of the columns
};

struct Float8Orders {
  bool values = true, transposed = false;
};

/// Returns the largest magnitude, not finite if x is not. x: bf16 -> fp32 []
at::Tensor largest_magnitude(const at::Tensor& x);

/// Rounds a matrix. x: [N, M] bf16, contiguous; largest: largest_magnitude(x); type: at::kFloat8_e4m3fn or
/// at::kFloat8_e5m2.
Float8Matrix to_float8(const at::Tensor& x, const at::Tensor& largest, at::ScalarType type,
                       const Float8Orders& orders);

/// Rounds a matrix to e4m3, `values` with a scale for each row and `transposed` with one for each column.
/// x: [N, M] bf16, contiguous
Float8Matrix to_float8_by_rows(const at::Tensor& x, const Float8Orders& orders);

}  // namespace fsdp::kernels
