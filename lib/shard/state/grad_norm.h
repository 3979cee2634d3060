#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

namespace fsdp::shard {

class Engine;

/// The norm of this rank's part of each unit's gradient, where it has been computed before. The gradient need
/// not exist any longer.
using KnownNorms = std::vector<std::optional<double>>;

/// Results of sum_unit_squares().
struct KnownSquares {
  at::Tensor sums;          ///< [known units] double on the device; undefined if there are none
  std::vector<bool> units;  ///< whether the sum of a unit is among them; empty if there are none
};

/// Returns the norm of this rank's part of the gradient of unit i. Requires: a unit with a gradient. Not
/// collective.
double local_grad_norm(const Engine& engine, size_t i, double norm_type = 2.0);

/// Returns the sum of |g|^norm_type over the elements g of this rank's part of the gradient, which replicas
/// count once: [] double on the device of the gradients, on the host if there are none. Does not wait for a
/// GPU. Requires: a finite norm_type, and all gradients on one device. Not collective.
at::Tensor local_norm_sum(const Engine& engine, double norm_type = 2.0, const KnownSquares& known = {});

/// Computes the part of unit i in the sum of squares, `sum` [1] double on the device of the gradient, in the
/// current stream. Returns whether it has one: a kernel for its gradient, which replicas count here. Not
/// collective.
bool sum_unit_squares(const Engine& engine, size_t i, const at::Tensor& sum);

/// Returns the p-norm of the whole gradient over all ranks as one vector (p > 0; infinity: the largest
/// magnitude). Replicas count once. Costs one all-reduce of a double or, for p = 2 where gradients are sums
/// by sample, of the integers of an exact sum. Throws Error(kUsage) when gradients are unreduced. `known`:
/// empty, or results of local_grad_norm(). Collective.
double grad_norm(Engine& engine, double norm_type = 2.0, const KnownNorms& known = {});

/// The effect of clip_grad_norm(), for optimizers that multiply gradients as they read them.
struct Clipping {
  double norm = 0;   ///< norm of the gradients / loss_scale, before clipping
  double scale = 1;  ///< factor for the gradients; 1 where the norm is not finite
};
Clipping clipping(Engine& engine, double max_norm, double norm_type = 2.0, double loss_scale = 1.0,
                  const KnownNorms& known = {});

/// Divides the gradients by loss_scale and, if their norm is larger than max_norm, scales them by max_norm /
/// (norm + 1e-6), as torch.nn.utils.clip_grad_norm_ does, in one pass. Returns the norm before clipping.
/// max_norm 0: no clipping. Leaves the gradients unchanged if the norm is not finite. Collective.
double clip_grad_norm(Engine& engine, double max_norm, double norm_type = 2.0, double loss_scale = 1.0);

/// Limits each element of the gradient of unit i, or of all units, to [-clip_value, clip_value], as
/// torch.nn.utils.clip_grad_value_ does. The limits are multiplied by the loss scale that the gradients
/// contain. Not collective.
void clip_grad_value(const Engine& engine, size_t i, double clip_value);
void clip_grad_value(const Engine& engine, double clip_value, double loss_scale = 1.0);

/// Returns the name of the unit whose gradient has the largest 2-norm; empty when no unit has a gradient.
/// Collective.
std::string unit_with_largest_gradient(Engine& engine);

/// Returns the name of the unit nearest the loss whose gradient, or whose norm in `known`, has an infinity or
/// NaN on any rank; empty when all gradients are finite. Collective.
std::string first_unit_that_is_not_finite(Engine& engine, const KnownNorms& known = {});

}  // namespace fsdp::shard
