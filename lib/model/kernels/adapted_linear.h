#pragma once

// Linear layers whose weights are frozen, each with a low-rank adapter beside it (model/nn/lora.h), as one node of the graph:
//
//   n = s x A^T    y = x W^T + n B^T                    A: [rank, in], B: [out, rank]
//   dn = s dy B    dx = dy W + dn A    dA = dn^T x    dB = dy^T n
//
// What an adapter adds goes into the sums of the large products: nothing of the size of x or y exists besides them. Of
// layers with the same input, x is packed once, their gradients of x are one sum, and the products dn A are one.

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

/// What the layers have in common.
struct AdaptedForm {
  std::optional<Quantization> quantization = std::nullopt;  ///< the weights are bytes (quantized.h)
  bool transposed = false;  ///< the weights, unless they are bytes, are [in, out]
  double scale = 1;         ///< s
  Matmul matmul = Matmul::kMkl;
};

/// Whether adapted_linears() supports these operands: all of one type, in which products are computed here, outside of
/// regions of autocast to another type, and weights that need no gradient.
bool can_adapt(const at::Tensor& x, const AdaptedWeight& layer, const AdaptedForm& form);

/// x: [..., in] -> y of each layer: [..., out]. With `recomputed`, backward computes them again (recomputed.h).
std::vector<at::Tensor> adapted_linears(const at::Tensor& x, const std::vector<AdaptedWeight>& layers,
                                        const AdaptedForm& form, bool recomputed = false);

}  // namespace fsdp::kernels
