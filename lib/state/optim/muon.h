#pragma once

#include "state/optim/element_optimizers.h"

namespace fsdp::optim {

/// Muon (Jordan et al.: Muon: An optimizer for hidden layers in neural networks, 2024) with the arithmetic of
/// PyTorch's torch.optim.Muon, but for the matrix products, which are float32 here and bfloat16 there. For a
/// matrix [rows, columns] with gradient g:
///
///   momentum_buffer = momentum * momentum_buffer + (1 - momentum) * g
///   d      = nesterov ? momentum * momentum_buffer + (1 - momentum) * g : momentum_buffer
///   value *= 1 - lr * weight_decay
///   value -= lr * r * orthogonalized(d)
///
/// where r is sqrt(max(1, rows / columns)) with adjust_lr_fn "original", and 0.2 * sqrt(max(rows, columns))
/// with "match_rms_adamw" (Liu et al.: Muon is scalable for LLM training, 2025), which makes steps about as
/// long as AdamW's. AdamW with the same options updates parameters that are not matrices, and
/// adamw_parameters. If weights are stored transposed (gpt2's), rows and columns are those of the stored
/// tensor.
///
/// step() is collective: it calls WholeMatrices::map() once for each parameter that has matrices.
class Muon : public Adam {
 public:
  /// Throws Error(kUsage) unless the momentum is above 0 and below 1, and for invalid ns_ options.
  Muon(const OptimizerOptions& options, std::vector<FlatParameter> parameters, WholeMatrices* matrices);

 private:
  void update_matrices(size_t i, const at::Tensor& gradient, double lr) override;
  /// Updates `buffer` and sets `direction`; all [n].
  void add_to_momentum(const at::Tensor& gradient, const at::Tensor& buffer, const at::Tensor& direction);
  void descend(const at::Tensor& value, const at::Tensor& direction, double lr, double decay);
  bool can_fuse(const at::Tensor& tensor) const;
  at::Tensor scaled_orthogonal(const at::Tensor& matrix) const;

  WholeMatrices* matrices_;
};

/// Newton-Schulz iteration towards the nearest matrix with orthonormal rows or columns: X becomes a X + (b A
/// + c A^2) X, with A = X X^T and coefficients {a, b, c}, `steps` times, beginning with the matrix divided by
/// its Frobenius norm. With the usual coefficients the singular values end near 1, not at it. matrix: [rows,
/// columns].
at::Tensor orthogonalized(const at::Tensor& matrix, int64_t steps, const std::vector<double>& coefficients);

}  // namespace fsdp::optim
