#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "kernels/fused.h"
#include "kernels/row_loops.h"
#include "util/error.h"

namespace fsdp::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::Variable;
using torch::autograd::variable_list;

/// Elements of logits that exist at a time, about: 64 MiB of fp32.
constexpr int64_t kChunkElements = 16 << 20;

/// The sum of the losses of the rows; logits become `scale` times their gradient where it is not 0.
double losses(const at::Tensor& logits, const at::Tensor& targets, double scale, const LossTerms& terms) {
  const int64_t rows = logits.size(0), vocabulary = logits.size(1);
  at::Tensor parts = at::zeros({rows}, at::kDouble);
  const int64_t grain = std::max<int64_t>(1, kGrain / vocabulary);
  at::parallel_for(0, rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      if (targets.data_ptr<int64_t>()[row] == kIgnored) {
        if (scale != 0) logits[row].zero_();
        continue;
      }
      parts.data_ptr<double>()[row] =
          loops_of(logits).cross_entropy({.logits = row_of(logits, row, vocabulary),
                                          .targets = targets.data_ptr<int64_t>() + row,
                                          .rows = 1,
                                          .vocabulary = vocabulary,
                                          .scale = static_cast<float>(scale),
                                          .label_smoothing = static_cast<float>(terms.label_smoothing),
                                          .z_loss = static_cast<float>(terms.z_loss)});
    }
  });
  double sum = 0;
  for (int64_t row = 0; row < rows; ++row) sum += parts.data_ptr<double>()[row];
  return sum;
}

class LinearCrossEntropy final : public Function<LinearCrossEntropy> {
 public:
  static Variable forward(AutogradContext* context, const Variable& given, const Variable& weight,
                          const Variable& targets, int64_t matmul_number, bool differentiates,
                          const LossTerms& terms) {
    const auto matmul = static_cast<Matmul>(matmul_number);
    const at::Tensor x = given.contiguous();
    const int64_t rows = x.size(0), chunk = cross_entropy_chunk_rows(rows, weight.size(0));
    at::Tensor dx = differentiates ? at::empty_like(x) : at::Tensor(), dweight;
    const int64_t* target = targets.data_ptr<int64_t>();
    const auto counted =
        static_cast<double>(std::max<int64_t>(1, rows - std::count(target, target + rows, kIgnored)));
    double loss = 0;
    for (int64_t first = 0; first < rows; first += chunk) {
      const int64_t count = std::min(chunk, rows - first);
      const at::Tensor part = x.narrow(0, first, count);
      const at::Tensor logits = product(part, weight, matmul);
      loss += losses(logits, targets.narrow(0, first, count), differentiates ? 1 / counted : 0, terms);
      if (!differentiates) continue;
      dx.narrow(0, first, count).copy_(product(logits, weight.t(), matmul));
      const at::Tensor of_weight = product(logits.t(), part.t(), matmul);
      if (dweight.defined()) {
        dweight.add_(of_weight);
      } else {
        dweight = chunk < rows ? of_weight.to(at::kFloat) : of_weight;
      }
    }
    if (differentiates) {
      context->saved_data["dx"] = dx;
      context->saved_data["dweight"] = dweight.to(weight.scalar_type());
    }
    return at::scalar_tensor(loss / counted, x.options().dtype(at::kFloat));
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    at::Tensor dx = context->saved_data["dx"].toTensor(), dweight = context->saved_data["dweight"].toTensor();
    context->saved_data.clear();  // the memory may go as soon as autograd has used it
    const double scale = gradients[0].item<double>();
    if (scale != 1) {
      dx.mul_(scale);
      dweight.mul_(scale);
    }
    return {dx, dweight, {}, {}, {}, {}};
  }
};

}  // namespace

at::Tensor linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& targets,
                                Matmul matmul, const LossTerms& terms) {
  FSDP_CHECK(can_fuse(x) && weight.scalar_type() == x.scalar_type() && x.dim() == 2 &&
             weight.size(1) == x.size(1) && targets.numel() == x.size(0));
  const at::Tensor tokens = targets.contiguous();
  const int64_t* target = tokens.data_ptr<int64_t>();
  const auto outside = std::find_if(target, target + targets.numel(), [&](int64_t token) {
    return token != kIgnored && (token < 0 || token >= weight.size(0));
  });
  if (outside != target + targets.numel()) {
    util::fail(util::ErrorKind::kUsage, "target tokens: expected numbers below ", weight.size(0),
               ", the size of the vocabulary; found ", *outside);
  }
  const bool differentiates = at::GradMode::is_enabled() && (x.requires_grad() || weight.requires_grad());
  return LinearCrossEntropy::apply(x, weight, tokens, static_cast<int64_t>(matmul), differentiates, terms);
}

int64_t cross_entropy_chunk_rows(int64_t rows, int64_t vocabulary) {
  return std::clamp<int64_t>(kChunkElements / vocabulary, 1, std::max<int64_t>(rows, 1));
}

}  // namespace fsdp::kernels
