#include "model/nn/loss.h"

#include <ATen/Functions.h>
#include <ATen/core/Reduction.h>
#include <ATen/core/grad_mode.h>

#include "model/nn/experts.h"

namespace fsdp::nn {

at::Tensor next_token_loss(const at::Tensor& logits, const at::Tensor& targets,
                           const kernels::LossTerms& terms) {
  const at::Tensor rows = logits.to(at::kFloat).flatten(0, -2), target = targets.flatten();
  const at::Tensor counts = target != kernels::kIgnored;
  // Without any target the sum is 0, and so is the result; a test for this case would make the host wait for
  // a device.
  const at::Tensor count = counts.sum().clamp_min(1);
  at::Tensor sum = at::cross_entropy_loss(rows, target, /*weight=*/{}, at::Reduction::Sum, kernels::kIgnored,
                                          terms.label_smoothing);
  if (terms.z_loss != 0) {
    const at::Tensor squares = at::logsumexp(rows, -1).square().masked_fill(~counts, 0);
    sum = sum + terms.z_loss * squares.sum();
  }
  return sum / count;
}

at::Tensor log_probs_of(const at::Tensor& logits, const at::Tensor& targets, at::Tensor* is_greedy) {
  const at::Tensor rows = logits.to(at::kFloat), counts = targets.ne(kernels::kIgnored),
                   tokens = targets.masked_fill(~counts, 0).unsqueeze(-1);
  const at::Tensor of_target = rows.gather(-1, tokens).squeeze(-1);
  if (is_greedy != nullptr) *is_greedy = of_target.ge(rows.amax(-1)).logical_and(counts);
  return (of_target - rows.logsumexp(-1)).masked_fill(~counts, 0);
}

TargetLogProbs target_log_probs(Stage& model, const at::Tensor& ids, const at::Tensor& targets) {
  StageContext context;
  context.targets = targets;
  context.wants_log_probs = true;
  context.is_greedy = std::make_shared<at::Tensor>();
  const at::Tensor output = model.forward(ids, context);
  if (context.is_greedy->defined()) return {output, *context.is_greedy};
  at::Tensor is_greedy;
  const at::Tensor log_probs = log_probs_of(output, targets, &is_greedy);  // a plug-in's model
  return {log_probs, is_greedy};
}

StageContext loss_context(const at::Tensor& targets, const LossOptions& options) {
  StageContext context;
  if (!options.function) context.targets = targets;
  context.loss_terms = options.terms;
  context.dropout = options.dropout;
  context.documents = options.documents;
  context.cut = options.cut;
  if (options.router_aux_loss_coef > 0) {
    context.balance = std::make_shared<ExpertBalance>(options.router_aux_loss_coef, options.is_token);
  }
  return context;
}

at::Tensor loss_of_output(const at::Tensor& output, const at::Tensor& targets, const LossOptions& options,
                          const StageContext& context) {
  const at::Tensor loss = options.function    ? options.function(output, targets, options.plugin_values)
                          : output.dim() == 0 ? output
                                              : next_token_loss(output, targets, options.terms);
  return context.balance ? context.balance->added_to(loss) : loss;
}

at::Tensor log_probs_of_targets(Stage& model, const at::Tensor& ids, const at::Tensor& targets,
                                const LossOptions& options, bool without_adapters,
                                std::shared_ptr<ExpertBalance>* balance) {
  StageContext context = loss_context(targets, options);
  context.targets = targets;
  context.wants_log_probs = true;
  context.without_adapters = without_adapters;
  balance != nullptr ? void(*balance = context.balance) : void(context.balance = nullptr);
  const at::Tensor output = model.forward(ids, context);
  return output.dim() == 3 ? log_probs_of(output, targets) : output;  // 3: scores of a plug-in's model
}

at::Tensor losses_of_lesson(Stage& model, const at::Tensor& ids, const at::Tensor& targets,
                            const LossOptions& options, std::shared_ptr<const Lesson> lesson,
                            std::shared_ptr<ExpertBalance>* balance) {
  StageContext context = loss_context(targets, options);
  context.targets = targets;
  context.lesson = lesson;
  balance != nullptr ? void(*balance = context.balance) : void(context.balance = nullptr);
  const at::Tensor output = model.forward(ids, context);
  if (output.dim() != 3) return output;
  return kernels::divergence_of_logits(output.flatten(0, 1), targets.flatten(), lesson->teacher,
                                       lesson->terms)
      .view(targets.sizes());
}

kernels::TeacherRows teacher_rows(Stage& teacher, const at::Tensor& ids, const LossOptions& options,
                                  int64_t count, double temperature) {
  const at::NoGradGuard no_grad;
  StageContext context;
  context.documents = options.documents;
  context.cut = options.cut;
  if (count > 0) context.likeliest = std::make_shared<LikeliestTokens>(LikeliestTokens{count, temperature});
  const at::Tensor output = teacher.forward(ids, context);
  if (output.dim() != 3) return context.likeliest->found;
  const at::Tensor scores = output.flatten(0, 1);
  return count > 0 ? kernels::likeliest_tokens(scores, count, temperature)
                   : kernels::TeacherRows{.logits = scores};
}

at::Tensor loss_of(Stage& model, const at::Tensor& ids, const at::Tensor& targets,
                   const LossOptions& options) {
  const StageContext context = loss_context(targets, options);
  return loss_of_output(model.forward(ids, context), targets, options, context);
}

}  // namespace fsdp::nn
