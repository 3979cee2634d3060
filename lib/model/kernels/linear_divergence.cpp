#include "model/kernels/linear_divergence.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "base/util/error.h"
#include "model/kernels/below_autograd.h"
#include "model/kernels/fused.h"
#include "model/kernels/gradient_sink.h"
#include "model/kernels/head_products.h"
#include "model/kernels/sample_sums.h"

namespace fsdp::kernels {
namespace {

/// Log-probabilities of the events that are compared: all tokens, or the likeliest ones and all others
/// together.
struct Events {
  at::Tensor model, teacher;  ///< [rows, events] fp32
};

/// log(1 - sum of exp(x)) of each row, at least that of one rounding error. x: [rows, k] -> [rows, 1]
at::Tensor log_of_rest(const at::Tensor& x) {
  return (1 - x.exp().sum(1, /*keepdim=*/true)).clamp_min(1e-7).log();
}

TeacherRows narrowed(const TeacherRows& rows, int64_t at, int64_t count) {
  const auto part = [&](const at::Tensor& x) { return x.defined() ? x.narrow(0, at, count) : x; };
  return {part(rows.logits), part(rows.ids), part(rows.log_probs)};
}

Events events_of(const at::Tensor& log_probs, const TeacherRows& teacher, double temperature) {
  if (teacher.logits.defined()) {
    return {log_probs, at::log_softmax(teacher.logits.to(at::kFloat) / temperature, 1)};
  }
  const at::Tensor known = log_probs.gather(1, teacher.ids), of_teacher = teacher.log_probs.to(at::kFloat);
  return {at::cat({known, log_of_rest(known)}, 1), at::cat({of_teacher, log_of_rest(of_teacher)}, 1)};
}

/// The divergence of each row, and its derivative by the model's probabilities, up to a number for each row.
struct Divergence {
  at::Tensor of_rows;     ///< [rows]
  at::Tensor derivative;  ///< [rows, events]
};

Divergence divergence_of(const Events& events, double beta) {
  const at::Tensor &p = events.model, &q = events.teacher;
  const auto expectation = [](const at::Tensor& log_probs, const at::Tensor& values) {
    return (log_probs.exp() * values).sum(1);
  };
  if (beta == 0) return {expectation(q, q - p), -(q - p).exp()};
  if (beta == 1) return {expectation(p, p - q), p - q};
  const at::Tensor mixture = at::logaddexp(p + std::log1p(-beta), q + std::log(beta));
  return {beta * expectation(q, q - mixture) + (1 - beta) * expectation(p, p - mixture),
          (1 - beta) * (p - mixture)};
}

/// One chunk of rows: the loss of each, and the derivative by the logits if that is wanted.
at::Tensor chunk_losses(const at::Tensor& logits, const at::Tensor& targets, const TeacherRows& teacher,
                        const DivergenceTerms& terms, at::Tensor* derivative) {
  const at::Tensor scores = logits.to(at::kFloat), counts = targets.ne(kIgnored),
                   tokens = targets.masked_fill(~counts, 0).unsqueeze(1);
  const at::Tensor log_probs = at::log_softmax(scores / terms.temperature, 1);
  const Events events = events_of(log_probs, teacher, terms.temperature);
  const Divergence found = divergence_of(events, terms.beta);
  at::Tensor losses = terms.alpha * found.of_rows, plain;
  if (terms.alpha != 1) {
    plain = terms.temperature == 1 ? log_probs : at::log_softmax(scores, 1);
    losses = losses - (1 - terms.alpha) * plain.gather(1, tokens).squeeze(1);
  }
  if (derivative == nullptr) return losses.masked_fill(~counts, 0);
  const at::Tensor& g = found.derivative;
  const at::Tensor mean = (events.model.exp() * g).sum(1, /*keepdim=*/true), p = log_probs.exp();
  if (teacher.logits.defined()) {
    *derivative = p * (g - mean);
  } else {
    const int64_t known = teacher.ids.size(1);
    const at::Tensor of_rest = g.narrow(1, known, 1);
    *derivative = p * (of_rest - mean);
    derivative->scatter_add_(1, teacher.ids, p.gather(1, teacher.ids) * (g.narrow(1, 0, known) - of_rest));
  }
  derivative->mul_(terms.alpha / terms.temperature);
  if (terms.alpha != 1) {
    at::Tensor of_target = plain.exp();
    of_target.scatter_add_(1, tokens, at::full_like(tokens, -1, of_target.options()));
    derivative->add_(of_target, 1 - terms.alpha);
  }
  return losses.masked_fill(~counts, 0);
}

void for_each_chunk(const at::Tensor& x, const at::Tensor& weight, int64_t logits_bytes,
                    const std::function<void(int64_t at, int64_t count)>& use) {
  const int64_t rows = x.size(0), chunk = cross_entropy_chunk_rows(x, weight.size(0), logits_bytes);
  for (int64_t at = 0; at < rows; at += chunk) use(at, std::min(chunk, rows - at));
}

class LinearDivergence final : public torch::autograd::Function<LinearDivergence> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor&,
                            const Parameters& parameters, const at::Tensor& targets,
                            const TeacherRows& teacher, const DivergenceTerms& terms, Matmul matmul) {
    const BelowAutograd below;
    const at::Tensor& weight = parameters.tensors[0];
    const HeadProducts head(x, weight, matmul);
    const at::Tensor losses = at::empty({x.size(0)}, x.options().dtype(at::kFloat));
    for_each_chunk(x, weight, terms.logits_bytes, [&](int64_t at, int64_t count) {
      at::Tensor logits = head.logits(x.narrow(0, at, count));
      cap_logits(logits, terms.logit_cap, /*differentiates=*/false);
      losses.narrow(0, at, count)
          .copy_(chunk_losses(logits, targets.narrow(0, at, count), narrowed(teacher, at, count), terms,
                              nullptr));
    });
    context->save_for_backward({x, targets, teacher.logits, teacher.ids, teacher.log_probs});
    context->saved_data["weight"] = weight;
    context->saved_data["matmul"] = static_cast<int64_t>(matmul);
    context->saved_data["terms"] =
        at::IValue(c10::List<double>({terms.beta, terms.temperature, terms.alpha, terms.logit_cap,
                                      static_cast<double>(terms.logits_bytes)}));
    return losses;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const BelowAutograd below;
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &targets = saved[1], weight = context->saved_data["weight"].toTensor();
    const TeacherRows teacher{saved[2], saved[3], saved[4]};
    const c10::List<double> numbers = context->saved_data["terms"].toDoubleList();
    const DivergenceTerms terms{.beta = numbers[0],
                                .temperature = numbers[1],
                                .alpha = numbers[2],
                                .logit_cap = numbers[3],
                                .logits_bytes = static_cast<int64_t>(numbers[4])};
    const HeadProducts head(x, weight, static_cast<Matmul>(context->saved_data["matmul"].toInt()));
    const at::Tensor factors = gradients[0].to(at::kFloat).masked_fill(targets.eq(kIgnored), 0).unsqueeze(1);
    const bool is_of_x = context->needs_input_grad(0), is_of_weight = is_wanted(*context, 1, weight);
    at::Tensor dx = is_of_x ? at::empty_like(x) : at::Tensor(), dweight;
    bool is_delivered = false;
    const auto gradient_of = [&](int64_t at, int64_t count) {
      const at::Tensor rows = x.narrow(0, at, count);
      at::Tensor logits = head.logits(rows), derivative;
      const at::Tensor slope = cap_logits(logits, terms.logit_cap, /*differentiates=*/true);
      chunk_losses(logits, targets.narrow(0, at, count), narrowed(teacher, at, count), terms, &derivative);
      derivative.mul_(factors.narrow(0, at, count));
      logits.copy_(derivative);
      if (slope.defined()) logits.mul_(slope);
      if (is_of_x) head.gradient_of_input(dx.narrow(0, at, count), logits);
      return logits;
    };
    if (is_of_weight && SampleSums::current() != nullptr) {
      dweight = weight_gradient_by_sample(weight, x, gradient_of);
      return {dx, deliver(*context, 1, weight, dweight), {}, {}, {}, {}, {}};
    }
    for_each_chunk(x, weight, terms.logits_bytes, [&](int64_t at, int64_t count) {
      const at::Tensor logits = gradient_of(at, count), rows = x.narrow(0, at, count);
      if (!is_of_weight) return;
      if (count == x.size(0)) {
        dweight = head.weight_gradient(logits, rows);
        is_delivered = !dweight.defined();
      } else {
        head.add_weight_gradient(dweight, logits, rows, /*of_all_rows=*/false);
      }
    });
    variable_list results{dx, {}, {}, {}, {}, {}, {}};
    if (!is_of_weight || is_delivered) return results;
    results[1] = deliver(*context, 1, weight, dweight.to(weight.scalar_type()));
    return results;
  }
};

}  // namespace

at::Tensor linear_divergence(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& targets,
                             const TeacherRows& teacher, const DivergenceTerms& terms, Matmul matmul) {
  FSDP_CHECK(weight.scalar_type() == x.scalar_type() && x.dim() == 2 && weight.size(1) == x.size(1) &&
             targets.numel() == x.size(0));
  check_targets(targets, weight.size(0));
  return LinearDivergence::apply(x.contiguous(), seen_parameter(weight, x), Parameters{{weight}},
                                 targets.contiguous(), teacher, terms, matmul);
}

at::Tensor divergence_of_logits(const at::Tensor& logits, const at::Tensor& targets,
                                const TeacherRows& teacher, const DivergenceTerms& terms) {
  return chunk_losses(logits, targets, teacher, terms, nullptr);
}

TeacherRows likeliest_tokens(const at::Tensor& logits, int64_t k, double temperature) {
  const at::Tensor log_probs = at::log_softmax(logits.to(at::kFloat) / temperature, 1);
  const auto [values, ids] = log_probs.topk(std::min(k, log_probs.size(1)), 1);
  return {.ids = ids, .log_probs = values};
}

TeacherRows likeliest_tokens(const at::Tensor& x, const at::Tensor& weight, int64_t k,
                             const DivergenceTerms& terms, Matmul matmul) {
  const at::NoGradGuard no_grad;
  const int64_t most = std::min(k, weight.size(0));
  const HeadProducts head(x, weight, matmul);
  const TeacherRows all{.ids = at::empty({x.size(0), most}, x.options().dtype(at::kLong)),
                        .log_probs = at::empty({x.size(0), most}, x.options().dtype(at::kFloat))};
  for_each_chunk(x, weight, terms.logits_bytes, [&](int64_t at, int64_t count) {
    at::Tensor logits = head.logits(x.narrow(0, at, count));
    cap_logits(logits, terms.logit_cap, /*differentiates=*/false);
    const TeacherRows found = likeliest_tokens(logits, k, terms.temperature);
    all.ids.narrow(0, at, count).copy_(found.ids);
    all.log_probs.narrow(0, at, count).copy_(found.log_probs);
  });
  return all;
}

}  // namespace fsdp::kernels
