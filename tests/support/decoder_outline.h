#pragma once

#include "model/nn/decoder.h"
#include "shard/engine/wrap_policy.h"

namespace fsdp::testing {

inline nn::ModelOutline decoder_outline(const nn::ModelOptions& options) {
  return shard::make_model_tree(*nn::make_decoder(options, at::kMeta)).outline;
}

}  // namespace fsdp::testing
