#pragma once

// Linear layers with frozen weights and low-rank adapters (model/nn/lora.h), as one node of the graph:
//
//   n = s x A^T    y = x W^T + n B^T                    A: [rank, in], B: [out, rank]
//   dn = s dy B    dx = dy W + dn A    dA = dn^T x    dB = dy^T n
//
// The adapters' terms are added within the sums of the large products: no other tensor of the size of x or y
// exists. For layers with the same input, x is packed once, their gradients of x are one sum, and the
// products dn A are one product.

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "model/kernels/matmul.h"
#include "model/kernels/quantized.h"

namespace fsdp::kernels {

struct AdaptedWeight {
  at::Tensor weight;  ///< [out, in]
  at::Tensor a, b;
};

/// The options that all the layers share.
struct AdaptedForm {
  /// Format of weights that are bytes (quantized.h)
  std::optional<Quantization> quantization = std::nullopt;
  bool transposed = false;  ///< whether the weights, unless they are bytes, are [in, out]
  double scale = 1;         ///< s
  Matmul matmul = Matmul::kMkl;
};

/// Whether adapted_linears() supports these operands: all of one type in which products are computed here,
/// outside of regions of autocast to another type, with weights that need no gradient.
bool can_adapt(const at::Tensor& x, const AdaptedWeight& layer, const AdaptedForm& form);

/// Computes each y. x: [..., in] -> [..., out]. With `recomputed`, backward computes it again (recomputed.h).
std::vector<at::Tensor> adapted_linears(const at::Tensor& x, const std::vector<AdaptedWeight>& layers,
                                        const AdaptedForm& form, bool recomputed = false);

}  // namespace fsdp::kernels
