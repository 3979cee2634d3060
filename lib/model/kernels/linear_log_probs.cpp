#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "base/util/error.h"
#include "model/kernels/below_autograd.h"
#include "model/kernels/fused.h"
#include "model/kernels/gradient_sink.h"
#include "model/kernels/head_products.h"
#include "model/kernels/meta.h"
#include "model/kernels/row_kernels.h"
#include "model/kernels/sample_sums.h"

namespace fsdp::kernels {
namespace {

/// The chunks of rows of a head, with a part of the vocabulary or all of it.
struct HeadChunks {
  at::Tensor x, weight, targets;
  Matmul matmul;
  double logit_cap = 0;
  int64_t first = 0, whole = 0;  ///< as in LossRows
  int64_t chunk = 1;

  int64_t rows() const { return x.size(0); }

  void for_each(const std::function<void(int64_t first, int64_t count)>& use) const {
    for (int64_t at = 0; at < rows(); at += chunk) use(at, std::min(chunk, rows() - at));
  }

  LossRows loss_rows(const at::Tensor& logits, int64_t at) const {
    return {.logits = logits.data_ptr(),
            .stride = logits.stride(0),
            .targets = targets.const_data_ptr<int64_t>() + at,
            .rows = logits.size(0),
            .vocabulary = weight.size(0),
            .first = first,
            .whole = whole};
  }
};

RowStatistics* rows_of_statistics(const at::Tensor& statistics, int64_t at) {
  return reinterpret_cast<RowStatistics*>(statistics.data_ptr<double>()) + at;
}

class LinearLogProbs final : public torch::autograd::Function<LinearLogProbs> {
 public:
  static variable_list forward(AutogradContext* context, const at::Tensor& given, const at::Tensor&,
                               const Parameters& parameters, const HeadChunks& chunks,
                               const std::function<void(const at::Tensor& statistics)>& combine) {
    const BelowAutograd below;
    const HeadProducts head(given, parameters.tensors[0], chunks.matmul);
    const at::Tensor statistics =
        at::empty({chunks.rows(), kRowStatistics}, given.options().dtype(at::kDouble));
    chunks.for_each([&](int64_t at, int64_t count) {
      at::Tensor logits = head.logits(chunks.x.narrow(0, at, count));
      cap_logits(logits, chunks.logit_cap, /*differentiates=*/false);
      LossRows rows = chunks.loss_rows(logits, at);
      rows.found = rows_of_statistics(statistics, at);
      KernelsFor(given)->losses(rows);
      if (combine) combine(statistics.narrow(0, at, count));
    });
    const at::Tensor most = statistics.select(1, 0), of_target = statistics.select(1, 2);
    const at::Tensor counts = chunks.targets.ne(kIgnored);
    const at::Tensor log_probs =
        (of_target - most - statistics.select(1, 1).log()).to(at::kFloat).masked_fill_(~counts, 0);
    const at::Tensor is_most = of_target.ge(most).logical_and_(counts);
    context->mark_non_differentiable({is_most});
    context->save_for_backward({chunks.x, chunks.targets, statistics});
    context->saved_data["weight"] = parameters.tensors[0];
    context->saved_data["matmul"] = static_cast<int64_t>(chunks.matmul);
    context->saved_data["logit_cap"] = chunks.logit_cap;
    context->saved_data["first"] = chunks.first;
    context->saved_data["whole"] = chunks.whole;
    context->saved_data["chunk"] = chunks.chunk;
    return {log_probs, is_most};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const BelowAutograd below;
    const variable_list saved = context->get_saved_variables();
    const at::Tensor weight = context->saved_data["weight"].toTensor(), &statistics = saved[2];
    const HeadChunks chunks{.x = saved[0],
                            .weight = weight,
                            .targets = saved[1],
                            .matmul = static_cast<Matmul>(context->saved_data["matmul"].toInt()),
                            .logit_cap = context->saved_data["logit_cap"].toDouble(),
                            .first = context->saved_data["first"].toInt(),
                            .whole = context->saved_data["whole"].toInt(),
                            .chunk = context->saved_data["chunk"].toInt()};
    // The kernel's gradient is that of the negative log-probability.
    const at::Tensor factors = gradients[0].to(at::kFloat).neg().contiguous();
    const at::Tensor losses = at::empty({chunks.rows()}, statistics.options()),
                     one = at::ones({1}, statistics.options());
    const HeadProducts head(chunks.x, weight, chunks.matmul);
    const bool is_of_x = context->needs_input_grad(0), is_of_weight = is_wanted(*context, 1, weight);
    at::Tensor dx = is_of_x ? at::empty_like(chunks.x) : at::Tensor(), dweight;
    bool is_delivered = false;
    const auto gradient_of = [&](int64_t at, int64_t count) {
      const at::Tensor x = chunks.x.narrow(0, at, count);
      at::Tensor logits = head.logits(x);
      const at::Tensor slope = cap_logits(logits, chunks.logit_cap, /*differentiates=*/true);
      LossRows rows = chunks.loss_rows(logits, at);
      rows.losses = losses.data_ptr<double>() + at;
      rows.counted = one.const_data_ptr<double>();
      rows.differentiates = true;
      rows.row_factors = factors.const_data_ptr<float>() + at;
      rows.known = rows_of_statistics(statistics, at);
      KernelsFor(x)->losses(rows);
      if (slope.defined()) logits.mul_(slope);
      if (is_of_x) head.gradient_of_input(dx.narrow(0, at, count), logits);
      return logits;
    };
    if (is_of_weight && SampleSums::current() != nullptr) {
      dweight = weight_gradient_by_sample(weight, chunks.x, gradient_of);
      return {dx, deliver(*context, 1, weight, dweight), {}, {}, {}};
    }
    chunks.for_each([&](int64_t at, int64_t count) {
      const at::Tensor logits = gradient_of(at, count), x = chunks.x.narrow(0, at, count);
      if (!is_of_weight) return;
      if (count == chunks.rows()) {
        dweight = head.weight_gradient(logits, x);
        is_delivered = !dweight.defined();
      } else {
        head.add_weight_gradient(dweight, logits, x, /*of_all_rows=*/false);
      }
    });
    variable_list results{dx, {}, {}, {}, {}};
    if (!is_of_weight || is_delivered) return results;
    results[1] = deliver(*context, 1, weight, dweight.to(weight.scalar_type()));
    return results;
  }
};

}  // namespace

TokenLogProbs linear_log_probs(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& targets,
                               Matmul matmul, const LossTerms& terms, const VocabularyPart* part) {
  FSDP_CHECK(can_fuse(x) && weight.scalar_type() == x.scalar_type() && x.dim() == 2 &&
             weight.size(1) == x.size(1) && targets.numel() == x.size(0) && targets.device() == x.device());
  const at::Tensor tokens = targets.contiguous();
  check_targets(tokens, part == nullptr ? weight.size(0) : part->whole);
  HeadChunks chunks{.x = x.contiguous(),
                    .weight = weight,
                    .targets = tokens,
                    .matmul = matmul,
                    .logit_cap = terms.logit_cap};
  if (part != nullptr) {
    chunks.first = part->first;
    chunks.whole = part->whole;
  }
  chunks.chunk =
      cross_entropy_chunk_rows(x, part == nullptr ? weight.size(0) : part->most, terms.logits_bytes);
  const variable_list results =
      LinearLogProbs::apply(x, seen_parameter(weight, x), Parameters{{weight}}, chunks,
                            part == nullptr ? std::function<void(const at::Tensor&)>() : part->combine);
  return {results[0], results[1]};
}

}  // namespace fsdp::kernels
