#include "shard/grad_norm.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/zeros.h>

#include <cmath>

namespace fsdp::shard {

double grad_norm(Engine& engine, double norm_type) {
  at::NoGradGuard no_grad;
  bool largest = std::isinf(norm_type);
  double local = 0;
  for (const auto& unit : engine.units()) {
    const at::Tensor& gradient = unit->storage().shard_gradient();
    if (!gradient.defined() || gradient.numel() == 0) continue;
    // In double: shards of different sizes must add up to the same norm at any world size.
    double norm =
        at::linalg_vector_norm(gradient, norm_type, std::nullopt, false, at::kDouble).item<double>();
    // NaN must survive the maximum.
    local = largest ? (norm > local || std::isnan(norm) ? norm : local) : local + std::pow(norm, norm_type);
  }
  at::Tensor total = at::zeros({1}, at::kDouble);
  total.data_ptr<double>()[0] = local;
  // Over the ranks that hold different shards: a replica's gradient is the same and must count once.
  engine.groups()
      .shard
      ->all_reduce(total, largest ? comm::ReduceOp::kMax : comm::ReduceOp::kSum,
                   {.unit = "gradient norm", .pass = "optimizer"})
      ->wait();
  double sum = total.data_ptr<double>()[0];
  return largest ? sum : std::pow(sum, 1.0 / norm_type);
}

double clip_grad_norm(Engine& engine, double max_norm, double norm_type) {
  double norm = grad_norm(engine, norm_type);
  double scale = max_norm / (norm + 1e-6);
  if (max_norm <= 0 || !std::isfinite(norm) || scale >= 1.0) return norm;
  at::NoGradGuard no_grad;
  for (const auto& unit : engine.units()) {
    const at::Tensor& gradient = unit->storage().shard_gradient();
    if (gradient.defined()) gradient.mul_(scale);
  }
  return norm;
}

}  // namespace fsdp::shard
