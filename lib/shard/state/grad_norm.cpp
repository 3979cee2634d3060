#include "shard/state/grad_norm.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>

#include "base/util/error.h"
#include "model/kernels/exact_squares.h"
#include "model/kernels/fused.h"
#include "model/kernels/reduce.h"
#include "shard/engine/engine.h"

namespace fsdp::shard {
namespace {

bool has_gradient(const Unit& unit) {
  const at::Tensor& gradient = unit.storage().shard_gradient();
  return gradient.defined() && gradient.numel() > 0;
}

/// Replicas have the same gradient, which must count once.
bool counts(const Unit& unit) { return unit.groups().replica_rank() == 0; }

/// Gradients whose norms are computed together, and those for which there is no kernel.
struct Gradients {
  std::vector<at::Tensor> fused, composed;
  std::vector<size_t> fused_units, composed_units;

  static bool has_kernel(const at::Tensor& gradient) {
    return kernels::can_fuse(gradient) && gradient.is_contiguous();
  }

  void add(const at::Tensor& gradient, size_t unit, double norm_type) {
    const bool fits = norm_type == 2 && has_kernel(gradient);
    (fits ? fused : composed).push_back(gradient);
    (fits ? fused_units : composed_units).push_back(unit);
  }
  /// [composed] double
  at::Tensor composed_norms(double norm_type) const {
    std::vector<at::Tensor> norms;
    for (const at::Tensor& gradient : composed) {
      norms.push_back(at::linalg_vector_norm(gradient, norm_type, std::nullopt, false, at::kDouble));
    }
    return at::stack(norms);
  }
};

/// Norms of the shards' gradients by unit; 0 for units without one and for those that `counted` excludes. In
/// double, so that the norm is the same at any world size. One sync for each device.
std::vector<double> local_norms(const Engine& engine, double norm_type,
                                const std::function<bool(const Unit&)>& counted,
                                const KnownNorms& known = {}) {
  std::vector<double> norms(engine.units().size(), 0.0);
  std::array<Gradients, 2> devices;  // some units may have their gradients in host memory
  for (size_t i = 0; i < norms.size(); ++i) {
    const Unit& unit = *engine.units()[i];
    if (!counted(unit)) continue;
    if (i < known.size() && known[i]) {
      norms[i] = *known[i];
      continue;
    }
    if (!has_gradient(unit)) continue;
    if (const auto squares = unit.storage().gradient().squares(); squares && norm_type == 2) {
      norms[i] = std::sqrt(*squares);
      continue;
    }
    const at::Tensor& gradient = unit.storage().shard_gradient();
    devices.at(gradient.is_cpu() ? 0 : 1).add(gradient, i, norm_type);
  }
  for (const Gradients& gradients : devices) {
    const std::vector<double> squares = kernels::sums_of_squares(gradients.fused);
    for (size_t k = 0; k < squares.size(); ++k) norms[gradients.fused_units[k]] = std::sqrt(squares[k]);
    if (gradients.composed.empty()) continue;
    const at::Tensor host = gradients.composed_norms(norm_type).to(at::kCPU);
    for (size_t k = 0; k < gradients.composed.size(); ++k) {
      norms[gradients.composed_units[k]] = host.const_data_ptr<double>()[k];
    }
  }
  return norms;
}

void check_reduced(const Engine& engine) {
  if (!engine.has_unreduced_gradients()) return;
  fail(ErrorKind::kUsage,
       "expected reduced gradients for their norm or for clipping; found those of a backward pass without "
       "sync; let the last micro-batch of a step run with set_requires_gradient_sync(true) and "
       "set_requires_all_reduce(true)");
}

/// `values` reduced over all ranks. Collective.
std::vector<double> all_reduced(Engine& engine, const std::vector<double>& values, comm::ReduceOp op,
                                const char* purpose) {
  at::Tensor tensor = at::zeros({static_cast<int64_t>(values.size())}, at::kDouble);
  double* data = tensor.data_ptr<double>();
  std::copy(values.begin(), values.end(), data);
  engine.communicator().all_reduce(tensor, op, {.unit = purpose, .pass = "optimizer"})->wait();
  return {data, data + values.size()};
}

/// Collective.
double exact_norm(Engine& engine) {
  kernels::ExactSquares squares;
  for (const auto& unit : engine.units()) {
    if (counts(*unit) && has_gradient(*unit)) squares.add(unit->storage().shard_gradient());
  }
  engine.communicator()
      .all_reduce(squares.counts(), comm::ReduceOp::kSum, {.unit = "gradient norm", .pass = "optimizer"})
      ->wait();
  return std::sqrt(squares.sum());
}

}  // namespace

double local_grad_norm(const Engine& engine, size_t i, double norm_type) {
  at::NoGradGuard no_grad;
  const Unit* one = engine.units().at(i).get();
  return local_norms(engine, norm_type, [one](const Unit& unit) { return &unit == one; })[i];
}

bool sum_unit_squares(const Engine& engine, size_t i, const at::Tensor& sum) {
  at::NoGradGuard no_grad;
  const Unit& unit = *engine.units().at(i);
  if (!counts(unit) || !has_gradient(unit)) return false;
  const at::Tensor& gradient = unit.storage().shard_gradient();
  if (!Gradients::has_kernel(gradient)) return false;
  kernels::sums_of_squares_into(sum, {gradient});
  return true;
}

at::Tensor local_norm_sum(const Engine& engine, double norm_type, const KnownSquares& known) {
  at::NoGradGuard no_grad;
  check_reduced(engine);
  FSDP_CHECK(std::isfinite(norm_type), norm_type);
  Gradients gradients;
  for (size_t i = 0; i < engine.units().size(); ++i) {
    const Unit& unit = *engine.units()[i];
    const bool is_known = !known.units.empty() && known.units.at(i);
    if (!is_known && counts(unit) && has_gradient(unit)) {
      gradients.add(unit.storage().shard_gradient(), 0, norm_type);
    }
  }
  std::vector<at::Tensor> sums;
  if (known.sums.defined()) sums.push_back(known.sums);
  if (!gradients.fused.empty()) sums.push_back(kernels::sums_of_squares_on_device(gradients.fused));
  if (!gradients.composed.empty()) sums.push_back(gradients.composed_norms(norm_type).pow_(norm_type));
  return sums.empty() ? at::zeros({}, at::kDouble) : (sums.size() == 1 ? sums.front() : at::cat(sums)).sum();
}

double grad_norm(Engine& engine, double norm_type, const KnownNorms& known) {
  at::NoGradGuard no_grad;
  check_reduced(engine);
  if (engine.options().sums_by_sample && norm_type == 2) return exact_norm(engine);
  bool largest = std::isinf(norm_type);
  double local = 0;
  for (double norm : local_norms(engine, norm_type, counts, known)) {
    if (largest) {
      // Not every backend's maximum propagates NaN, but every one propagates infinity.
      local = std::max(local, std::isnan(norm) ? std::numeric_limits<double>::infinity() : norm);
    } else {
      local += std::pow(norm, norm_type);
    }
  }
  const comm::ReduceOp op = largest ? comm::ReduceOp::kMax : comm::ReduceOp::kSum;
  const double total = all_reduced(engine, {local}, op, "gradient norm").front();
  return largest ? total : std::pow(total, 1.0 / norm_type);
}

Clipping clipping(Engine& engine, double max_norm, double norm_type, double loss_scale,
                  const KnownNorms& known) {
  const double norm = grad_norm(engine, norm_type, known) / loss_scale;
  if (!std::isfinite(norm)) return {.norm = norm};
  const double scale = max_norm > 0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0;
  return {.norm = norm, .scale = scale / loss_scale};
}

double clip_grad_norm(Engine& engine, double max_norm, double norm_type, double loss_scale) {
  const auto [norm, scale] = clipping(engine, max_norm, norm_type, loss_scale);
  if (scale == 1.0) return norm;
  at::NoGradGuard no_grad;
  // A tensor: mul_() rounds a plain number to the gradient's type before it multiplies.
  const at::Tensor factor = at::scalar_tensor(scale, at::kDouble);
  for (const auto& unit : engine.units()) {
    const at::Tensor& gradient = unit->storage().shard_gradient();
    if (gradient.defined()) gradient.mul_(factor);
  }
  return norm;
}

void clip_grad_value(const Engine& engine, size_t i, double clip_value) {
  at::NoGradGuard no_grad;
  const at::Tensor& gradient = engine.units().at(i)->storage().shard_gradient();
  if (gradient.defined()) gradient.clamp_(-clip_value, clip_value);
}

void clip_grad_value(const Engine& engine, double clip_value, double loss_scale) {
  check_reduced(engine);
  for (size_t i = 0; i < engine.units().size(); ++i) clip_grad_value(engine, i, clip_value * loss_scale);
}

std::string unit_with_largest_gradient(Engine& engine) {
  at::NoGradGuard no_grad;
  std::vector<double> squares = local_norms(engine, 2, counts);
  for (double& norm : squares) norm *= norm;
  squares = all_reduced(engine, squares, comm::ReduceOp::kSum, "gradient norms of units");
  size_t largest = 0;
  for (size_t i = 0; i < squares.size(); ++i) {
    if (squares[i] > squares[largest]) largest = i;
  }
  return squares.empty() || squares[largest] == 0 ? std::string() : engine.units()[largest]->name();
}

std::string first_unit_that_is_not_finite(Engine& engine, const KnownNorms& known) {
  at::NoGradGuard no_grad;
  std::vector<double> flags = local_norms(
      engine, std::numeric_limits<double>::infinity(), [](const Unit&) { return true; }, known);
  for (double& norm : flags) norm = std::isfinite(norm) ? 0 : 1;
  flags = all_reduced(engine, flags, comm::ReduceOp::kMax, "finite gradients");
  // Backward runs from the last unit to the first.
  for (size_t i = flags.size(); i-- > 0;) {
    if (flags[i] != 0) return engine.units()[i]->name();
  }
  return {};
}

}  // namespace fsdp::shard
