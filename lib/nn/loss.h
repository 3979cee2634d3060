#pragma once

#include <ATen/core/Tensor.h>

#include "nn/stage.h"

namespace fsdp::nn {

/// Mean cross-entropy in nats over the targets that are not -100 (0 where there is none), with `terms`, in
/// fp32 whatever the type of the logits is. logits: [B, T, V], targets: [B, T] int64 -> scalar.
at::Tensor next_token_loss(const at::Tensor& logits, const at::Tensor& targets,
                           const kernels::LossTerms& terms = {});

/// The mean loss of the model's scores of ids [B, T] against targets [B, T], by whichever way the model has:
/// it may give the loss itself (StageContext::targets), or its scores.
struct LossOptions {
  kernels::LossTerms terms = {};
  std::optional<DropoutChoice> dropout = std::nullopt;
  std::shared_ptr<const DocumentStarts> documents = nullptr;
};
at::Tensor loss_of(Stage& model, const at::Tensor& ids, const at::Tensor& targets,
                   const LossOptions& options = {});

}  // namespace fsdp::nn
