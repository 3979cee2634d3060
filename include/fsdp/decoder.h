#pragma once

/// \file
/// The built-in language models: the llama family (Llama, Mistral, Qwen2) and gpt2, with Hugging Face's
/// parameter names. ids: [B, T] int64 -> logits: [B, T, vocab_size], or the mean loss if the context has
/// targets.
///
/// Collective: nothing until the model is sharded.
///
/// Errors: Error(kUsage) for invalid sizes.
///
/// Lifetime: a model on at::kMeta has shapes but no memory; fully_shard() allocates memory for its units if
/// Materialize has a source of weights.
///
/// \code{.cpp}
/// at::Tensor first_loss(const at::Tensor& ids, const at::Tensor& targets) {          // [B, T] int64 each
///   const fsdp::ModelOptions options{.vocab_size = 256, .hidden_size = 128, .intermediate_size = 344,
///                                    .num_hidden_layers = 2, .num_attention_heads = 4,
///                                    .num_key_value_heads = 4};
///   auto model = fsdp::make_decoder(options);
///   fsdp::initialize_parameters(*model, options, /*seed=*/1);
///   return fsdp::loss_of(*model, ids, targets);                                      // [] float32, nats
/// }
/// \endcode

#include "model/families/options.h"
#include "model/nn/decoder.h"
#include "model/nn/initialize.h"
#include "model/nn/loss.h"

namespace fsdp {

using nn::Activation;
using nn::count_parameters;
using nn::initialize_parameters;
using nn::loss_of;
using nn::LossOptions;
using nn::make_decoder;
using nn::ModelOptions;
using nn::RopeType;

}  // namespace fsdp
