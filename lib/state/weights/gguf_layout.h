#pragma once

// Layouts of weights in GGUF files (state/gguf/forms.h).

#include <ATen/core/Tensor.h>

#include "model/families/options.h"
#include "state/gguf/forms.h"

namespace fsdp::gguf {

/// Convert a whole weight or bias from our layout to GGUF's, and back; for a stacked tensor, the matrix of
/// one expert.
at::Tensor to_theirs(const at::Tensor& weight, Stored stored, const nn::ModelOptions& options);
at::Tensor to_ours(const at::Tensor& weight, Stored stored, const nn::ModelOptions& options);

}  // namespace fsdp::gguf
