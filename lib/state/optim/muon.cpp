#include "state/optim/muon.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cmath>

#include "base/tensor/parallel.h"
#include "base/util/error.h"

namespace fsdp::optim {
namespace {

/// Least norm to divide by, for matrices of zeros.
constexpr double kEpsilon = 1e-7;
constexpr int64_t kMostSteps = 99;

// Plain loops over the elements of matrices. libtorch's kernels may round the elements after the last whole
// vector differently, and which elements come after it depends on the sharding.

struct MomentumLoop {
  float momentum, rest;
  bool nesterov;

  void run(int64_t n, const float* __restrict gradient, float* __restrict buffer,
           float* __restrict direction) const {
    for (int64_t i = 0; i < n; ++i) {
      const float next = momentum * buffer[i] + rest * gradient[i];
      buffer[i] = next;
      direction[i] = nesterov ? momentum * next + rest * gradient[i] : next;
    }
  }
};

void descend_loop(int64_t n, float keep, float lr, float* __restrict value,
                  const float* __restrict direction) {
  for (int64_t i = 0; i < n; ++i) value[i] = keep * value[i] - lr * direction[i];
}

}  // namespace

Muon::Muon(const OptimizerOptions& options, std::vector<FlatParameter> parameters, WholeMatrices* matrices)
    : Adam(options, Decay::kDecoupled, std::move(parameters)), matrices_(matrices) {
  FSDP_CHECK(matrices_ != nullptr, "muon without a way to whole matrices");
  require(options.momentum > 0 && options.momentum < 1, "optimizer.momentum = ", options.momentum,
          " must be a number above 0 and below 1 for muon; 0.95 is usual");
  require(options.ns_steps >= 1 && options.ns_steps <= kMostSteps, "optimizer.ns_steps = ", options.ns_steps,
          " must be a number from 1 to ", kMostSteps, "; 5 is usual");
  require(options.ns_coefficients.size() == 3, "optimizer.ns_coefficients must have three numbers, but has ",
          options.ns_coefficients.size(), "; leave it out");
}

void Muon::update_matrices(size_t i, const at::Tensor& gradient, double lr) {
  if (!matrices_->has_matrices(i)) return;
  const FlatParameter& parameter = parameters()[i];
  at::Tensor flat = at::zeros(parameter.value.sizes(), parameter.value.options().dtype(at::kFloat));
  for (const FlatParameter::Range& range : parameter.ranges) {
    if (!range.treatment.matrix) continue;
    change_state("momentum_buffer", i, range.begin, range.end, [&](const at::Tensor& piece, int64_t begin) {
      add_to_momentum(gradient.narrow(0, begin, piece.numel()), piece, flat.narrow(0, begin, piece.numel()));
    });
  }
  matrices_->map(i, flat, [this](const at::Tensor& matrix) { return scaled_orthogonal(matrix); });
  for (const FlatParameter::Range& range : parameter.ranges) {
    if (!range.treatment.matrix) continue;
    const double rate = lr_of(options(), range.treatment, lr);
    change_value(i, range.begin, range.end, [&](const at::Tensor& piece, int64_t begin) {
      descend(piece, flat.narrow(0, begin, piece.numel()), rate,
              rate * weight_decay_of(options(), range.treatment));
    });
  }
}

void Muon::add_to_momentum(const at::Tensor& gradient, const at::Tensor& buffer,
                           const at::Tensor& direction) {
  const double momentum = options().momentum;
  if (!can_fuse(buffer)) {
    buffer.lerp_(gradient, 1 - momentum);
    direction.copy_(options().nesterov ? gradient.lerp(buffer, momentum) : buffer);
    return;
  }
  const MomentumLoop loop{.momentum = static_cast<float>(momentum),
                          .rest = static_cast<float>(1 - momentum),
                          .nesterov = options().nesterov};
  const float* from = gradient.const_data_ptr<float>();
  float *kept = buffer.data_ptr<float>(), *to = direction.data_ptr<float>();
  util::parallel_for(0, buffer.numel(), kGrain, [&](int64_t begin, int64_t end) {
    loop.run(end - begin, from + begin, kept + begin, to + begin);
  });
}

void Muon::descend(const at::Tensor& value, const at::Tensor& direction, double lr, double decay) {
  if (!can_fuse(value)) {
    value.mul_(1 - decay).add_(direction, -lr);
    return;
  }
  const auto keep = static_cast<float>(1 - decay), rate = static_cast<float>(lr);
  float* to = value.data_ptr<float>();
  const float* from = direction.const_data_ptr<float>();
  util::parallel_for(0, value.numel(), kGrain, [&](int64_t begin, int64_t end) {
    descend_loop(end - begin, keep, rate, to + begin, from + begin);
  });
}

bool Muon::can_fuse(const at::Tensor& tensor) const { return options().fused && tensor.is_cpu(); }

at::Tensor Muon::scaled_orthogonal(const at::Tensor& matrix) const {
  const auto rows = static_cast<double>(matrix.size(0)), columns = static_cast<double>(matrix.size(1));
  const double ratio = options().adjust_lr_fn == LrAdjustment::kOriginal
                           ? std::sqrt(std::max(1.0, rows / columns))
                           : 0.2 * std::sqrt(std::max(rows, columns));
  return orthogonalized(matrix, options().ns_steps, options().ns_coefficients).mul_(ratio);
}

at::Tensor orthogonalized(const at::Tensor& matrix, int64_t steps, const std::vector<double>& coefficients) {
  // A tall matrix is transposed, so that A is the smaller of the two squares.
  const bool tall = matrix.size(0) > matrix.size(1);
  const at::Tensor norm =
      at::linalg_vector_norm(matrix, 2).clamp_min_(kEpsilon);  // stays on the device: no synchronisation
  at::Tensor x = tall ? matrix.t().contiguous().div_(norm) : matrix.div(norm);
  for (int64_t step = 0; step < steps; ++step) {
    at::Tensor a = x.mm(x.t());
    a = at::addmm(a, a, a, coefficients[1], coefficients[2]);
    x = at::addmm(x, a, x, coefficients[0], 1);
  }
  return tall ? x.t().contiguous() : x;
}

}  // namespace fsdp::optim
