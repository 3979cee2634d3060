#include "nn/loss.h"

#include <ATen/Functions.h>
#include <ATen/core/Reduction.h>

namespace fsdp::nn {

at::Tensor next_token_loss(const at::Tensor& logits, const at::Tensor& targets,
                           const kernels::LossTerms& terms) {
  const at::Tensor rows = logits.to(at::kFloat).flatten(0, -2), target = targets.flatten();
  if (!(target != kernels::kIgnored).any().item<bool>()) return rows.sum() * 0;
  at::Tensor loss = at::cross_entropy_loss(rows, target, /*weight=*/{}, at::Reduction::Mean,
                                           kernels::kIgnored, terms.label_smoothing);
  if (terms.z_loss == 0) return loss;
  const at::Tensor counts = target != kernels::kIgnored;
  const at::Tensor squares = at::logsumexp(rows, -1).square().masked_fill(~counts, 0);
  return loss + terms.z_loss * squares.sum() / counts.sum();
}

at::Tensor loss_of(Stage& model, const at::Tensor& ids, const at::Tensor& targets,
                   const LossOptions& options) {
  StageContext context;
  context.targets = targets;
  context.loss_terms = options.terms;
  context.dropout = options.dropout;
  context.documents = options.documents;
  at::Tensor output = model.forward(ids, context);
  return output.dim() == 0 ? output : next_token_loss(output, targets, options.terms);
}

}  // namespace fsdp::nn
