#pragma once

#include "state/optim/tensor_optimizer.h"

namespace fsdp::optim {

/// Adafactor (Shazeer, Stern: Adafactor: Adaptive learning rates with sublinear memory cost, 2018) with the
/// arithmetic and the names of fairseq's and Hugging Face's Adafactor. For each tensor with gradient g, at
/// its t-th step, with {eps1, eps2} = adafactor_eps, beta2 = 1 - t^decay_rate and rms(x) = |x| / sqrt(number
/// of elements):
///
///   rate  = lr; with relative_step at most 1 / sqrt(t)
///   rate *= scale_parameter ? max(eps2, rms(value)) : 1
///   matrix [rows, columns]:
///     exp_avg_sq_row = beta2 * exp_avg_sq_row + (1 - beta2) * (mean of g^2 over each row + eps1)
///     exp_avg_sq_col = beta2 * exp_avg_sq_col + (1 - beta2) * (mean of g^2 over each column + eps1)
///     d = g * sqrt(mean(exp_avg_sq_row)) / sqrt(exp_avg_sq_row) / sqrt(exp_avg_sq_col)
///   other tensor:
///     exp_avg_sq = beta2 * exp_avg_sq + (1 - beta2) * (g^2 + eps1)
///     d = g / sqrt(exp_avg_sq)
///   d *= rate / max(1, rms(d) / clip_threshold)
///   with beta1 != 0: exp_avg = beta1 * exp_avg + (1 - beta1) * d, and d = exp_avg
///   value = (1 - rate * weight_decay) * value - d
///
/// With relative_step, lr = 0.01 and a constant schedule give Hugging Face's relative_step = True. A linear
/// warm-up over 10,000 steps in addition gives its warmup_init = True. With scale_parameter as well, steps
/// are those of torch.optim.Adafactor, except near gradients of 0 and for weight decay, which is not scaled
/// there.
///
/// A step communicates a number per row, column and tensor, in two all-reduces per unit. The averages of rows
/// and columns are whole on every rank.
class Adafactor final : public TensorOptimizer {
 public:
  /// Throws Error(kUsage) unless clip_threshold is above 0, decay_rate from -1 to 0, beta1 at least 0 and
  /// below 1, and adafactor_eps are two numbers of at least 0.
  Adafactor(const OptimizerOptions& options, std::vector<FlatParameter> parameters, WholeMatrices* matrices);

 private:
  void update_ranges(size_t i, const at::Tensor& gradient, double lr, double gradient_scale) override;
  /// The sums of sums_of_tensors(), over this rank's parts: squares of values, then of gradients.
  std::vector<double> first_sums(const FlatParameter& parameter, const at::Tensor& gradient) const;
  /// Sets `directions` to d, before its scaling, and updates the averages of squares.
  void find_directions(size_t i, const at::Tensor& gradient, const std::vector<double>& sums,
                       const at::Tensor& directions);
};

}  // namespace fsdp::optim
