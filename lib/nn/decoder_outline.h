#pragma once

// Which stages and parameters the models of this component have, without building one. Needs no libtorch.
//
// It is the registration in the constructors of llama.cpp, gpt2.cpp and their parts, written down once more,
// in the same order; tests/shard/model_tree_test.cpp holds the one against the other.

#include "nn/model_outline.h"
#include "nn/options.h"

namespace fsdp::nn {

/// Throws Error(kUsage) for shapes that no model can have (a hidden size that the heads do not divide, ...)
/// and for an unknown architecture.
void check_decoder_options(const ModelOptions& options);

/// The outline of make_decoder(options); throws as that does.
ModelOutline decoder_outline(const ModelOptions& options);

}  // namespace fsdp::nn
