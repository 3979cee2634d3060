#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "base/util/error.h"
#include "model/kernels/below_autograd.h"
#include "model/kernels/factor_products.h"
#include "model/kernels/fused.h"
#include "model/kernels/gradient_sink.h"
#include "model/kernels/head_products.h"
#include "model/kernels/meta.h"
#include "model/kernels/row_kernels.h"
#include "model/kernels/sample_sums.h"

namespace fsdp::kernels {
namespace {

/// Approximate number of elements of logits in memory at a time: 64 MiB of fp32.
constexpr int64_t kChunkElements = 16 << 20;

/// Multiple of the rows of logits on a GPU, for whole tiles.
constexpr int64_t kRowMultiple = 256;

/// Whether backward computes the weight's gradient directly in its place, from the gradient of all logits: on
/// a GPU, if these are one chunk; on the CPU, if they are fewer numbers than the weight. Otherwise forward
/// computes it, chunk by chunk. By sample, a gradient that is computed in chunks must be so in any
/// micro-batch. A cap needs memory for the logits several times. Parts of a vocabulary are combined chunk by
/// chunk.
bool keeps_logits(const at::Tensor& x, const at::Tensor& weight, int64_t chunk, bool may_exceed_chunk) {
  const bool is_one_chunk = x.size(0) <= chunk;
  if (!weight.requires_grad()) return false;
  return is_for_cpu(x) ? (is_one_chunk || may_exceed_chunk) && x.size(0) < x.size(1) : is_one_chunk;
}

/// Adds the losses [rows] up by sample.
void add_up_samples(const at::Tensor& losses, SampleSums& samples) {
  const auto* loss = losses.const_data_ptr<double>();
  const int64_t rows = samples.rows_of_sample(losses.numel());
  samples.losses.assign(static_cast<size_t>(samples.samples()), 0.0);
  for (int64_t row = 0; row < losses.numel(); ++row) {
    samples.losses[static_cast<size_t>(row / rows)] += loss[row];
  }
}

class LinearCrossEntropy final : public torch::autograd::Function<LinearCrossEntropy> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& given, const at::Tensor&,
                            const Parameters& parameters, const at::Tensor& targets, int64_t matmul_number,
                            bool differentiates, const LossTerms& terms, const VocabularyPart* part) {
    const BelowAutograd below;
    const at::Tensor& weight = parameters.tensors[0];
    const at::Tensor x = given.contiguous();
    const HeadProducts head(x, weight, static_cast<Matmul>(matmul_number));
    const int64_t rows = x.size(0), vocabulary = weight.size(0);
    SampleSums* const samples = SampleSums::current();
    int64_t chunk =
        cross_entropy_chunk_rows(x, part == nullptr ? vocabulary : part->most, terms.logits_bytes);
    const bool is_trained = weight.requires_grad(),
               keeps = differentiates &&
                       keeps_logits(x, weight, chunk,
                                    samples == nullptr && part == nullptr && terms.logit_cap == 0);
    if (keeps) chunk = rows;
    at::Tensor dx = differentiates ? at::empty_like(x) : at::Tensor(), dweight, kept;
    const auto* target = targets.const_data_ptr<int64_t>();
    const at::Tensor losses = at::empty({rows}, x.options().dtype(at::kDouble));
    const at::Tensor counted = at::empty({1}, losses.options());
    if (samples != nullptr) {
      counted.fill_(samples->counted());
    } else {
      KernelsFor(x)->count_targets(target, rows, counted.data_ptr<double>());
    }
    // Logits of some rows, overwritten by their gradients, with the losses and the gradient of the rows.
    const auto logits_of = [&](int64_t first, int64_t count) {
      at::Tensor logits = head.logits(x.narrow(0, first, count));
      const at::Tensor slope = cap_logits(logits, terms.logit_cap, differentiates);
      LossRows loss_rows{.logits = logits.data_ptr(),
                         .stride = logits.stride(0),
                         .targets = target + first,
                         .losses = losses.data_ptr<double>() + first,
                         .counted = counted.data_ptr<double>(),
                         .rows = count,
                         .vocabulary = vocabulary,
                         .differentiates = differentiates,
                         .factor = static_cast<float>(terms.expected_gradient),
                         .label_smoothing = static_cast<float>(terms.label_smoothing),
                         .z_loss = static_cast<float>(terms.z_loss)};
      at::Tensor statistics;
      if (part != nullptr) {
        statistics = at::empty({count, kRowStatistics}, losses.options());
        loss_rows.first = part->first;
        loss_rows.whole = part->whole;
        loss_rows.found = reinterpret_cast<RowStatistics*>(statistics.data_ptr<double>());
        KernelsFor(x)->losses(loss_rows);
        part->combine(statistics);
        loss_rows.known = std::exchange(loss_rows.found, nullptr);
      }
      KernelsFor(x)->losses(loss_rows);
      if (!differentiates) return logits;
      if (slope.defined()) logits.mul_(slope);
      head.gradient_of_input(dx.narrow(0, first, count), logits);
      return logits;
    };
    if (samples != nullptr && differentiates && is_trained && !keeps) {
      dweight = at::empty(weight.sizes(), x.options().dtype(at::kFloat));
      const int64_t of_sample = samples->rows_of_sample(rows),
                    most = cross_entropy_chunk_rows(of_sample, vocabulary);
      sum_along_tree(samples->samples(), dweight, [&](int64_t sample, const at::Tensor& to) {
        for (int64_t begin = 0; begin < of_sample; begin += most) {
          const int64_t first = sample * of_sample + begin, count = std::min(most, of_sample - begin);
          const ProductOf product{.c = to, .a = flipped(logits_of(first, count)), .adds = begin > 0};
          multiply_all_into(std::span(&product, 1), x.narrow(0, first, count));
        }
      });
    } else {
      for (int64_t first = 0; first < rows; first += chunk) {
        const int64_t count = std::min(chunk, rows - first);
        const at::Tensor logits = logits_of(first, count);
        if (!differentiates) continue;
        if (keeps) {
          kept = logits;
        } else if (is_trained) {
          head.add_weight_gradient(dweight, logits, x.narrow(0, first, count), count == rows);
        }
      }
    }
    if (samples != nullptr && !losses.is_meta()) add_up_samples(losses, *samples);
    if (differentiates) {
      context->saved_data["expected_gradient"] = terms.expected_gradient;
      context->saved_data["dx"] = dx;
      const bool rounds = dweight.defined() && samples == nullptr;
      context->saved_data["dweight"] = rounds ? dweight.to(weight.scalar_type()) : dweight;
      context->saved_data["dlogits"] = kept;
      context->saved_data["x"] = kept.defined() ? x : at::Tensor();
      context->saved_data["matmul"] = matmul_number;
      context->saved_data["weight"] = weight;
    }
    at::Tensor loss = at::empty({}, x.options().dtype(at::kFloat));
    KernelsFor(x)->mean_loss(losses.data_ptr<double>(), rows, counted.data_ptr<double>(),
                             loss.data_ptr<float>());
    return loss;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const BelowAutograd below;
    at::Tensor dx = context->saved_data["dx"].toTensor(), dweight = context->saved_data["dweight"].toTensor();
    const at::Tensor dlogits = context->saved_data["dlogits"].toTensor(),
                     x = context->saved_data["x"].toTensor(),
                     weight = context->saved_data["weight"].toTensor();
    const auto matmul = static_cast<Matmul>(context->saved_data["matmul"].toInt());
    const double expected = context->saved_data["expected_gradient"].toDouble();
    context->saved_data.clear();  // autograd may free the memory after its last use
    const at::Tensor rest = expected == 1 ? gradients[0] : gradients[0] / expected;
    const auto* factor = rest.const_data_ptr<float>();
    for (const at::Tensor& gradient : {dx, dweight, dlogits}) {
      if (!gradient.defined()) continue;
      // Rows of logits may be further apart than they are long.
      KernelsFor(gradient)->scale(gradient.data_ptr(), gradient.size(0) * gradient.stride(0), factor);
    }
    if (!is_wanted(*context, 1, weight)) return {dx, {}, {}, {}, {}, {}, {}, {}};
    if (dlogits.defined()) {
      dweight = HeadProducts(x, weight, matmul).weight_gradient(dlogits, x);
    } else if (SampleSums::current() != nullptr) {
      dweight = gradient_along_tree(weight, 1, [&](int64_t, const at::Tensor& to) { to.copy_(dweight); });
    }
    return {dx, deliver(*context, 1, weight, dweight), {}, {}, {}, {}, {}, {}};
  }
};

}  // namespace

at::Tensor linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& targets,
                                Matmul matmul, const LossTerms& terms, const VocabularyPart* part) {
  FSDP_CHECK(can_fuse(x) && weight.scalar_type() == x.scalar_type() && x.dim() == 2 &&
             weight.size(1) == x.size(1) && targets.numel() == x.size(0) && targets.device() == x.device());
  const at::Tensor tokens = targets.contiguous();
  check_targets(tokens, part == nullptr ? weight.size(0) : part->whole);
  const bool differentiates = at::GradMode::is_enabled() && (x.requires_grad() || weight.requires_grad());
  return LinearCrossEntropy::apply(x, seen_parameter(weight, x), Parameters{{weight}}, tokens,
                                   static_cast<int64_t>(matmul), differentiates, terms, part);
}

int64_t cross_entropy_chunk_rows(const at::Tensor& x, int64_t vocabulary, int64_t device_bytes) {
  if (is_for_cpu(x)) return cross_entropy_chunk_rows(x.size(0), vocabulary);
  const int64_t row_bytes = row_stride(x, vocabulary) * static_cast<int64_t>(x.element_size());
  const int64_t most = device_bytes / row_bytes, regular = most / kRowMultiple * kRowMultiple;
  if (most >= x.size(0)) return std::max<int64_t>(x.size(0), 1);
  return std::clamp<int64_t>(regular > 0 ? regular : most, 1, std::max<int64_t>(x.size(0), 1));
}

int64_t cross_entropy_chunk_rows(int64_t rows, int64_t vocabulary) {
  return std::clamp<int64_t>(kChunkElements / vocabulary, 1, std::max<int64_t>(rows, 1));
}

}  // namespace fsdp::kernels
