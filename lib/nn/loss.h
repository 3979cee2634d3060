#pragma once

#include <ATen/core/Tensor.h>

namespace fsdp::nn {

/// Mean cross-entropy in nats over the targets that are not -100, in fp32 whatever the type of
/// the logits is.
/// logits: [B, T, V], targets: [B, T] int64 -> scalar.
at::Tensor next_token_loss(const at::Tensor& logits, const at::Tensor& targets);

}  // namespace fsdp::nn
