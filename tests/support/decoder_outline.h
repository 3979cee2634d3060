#pragma once

#include "nn/decoder.h"
#include "shard/model_tree.h"

namespace fsdp::testing {

inline nn::ModelOutline decoder_outline(const nn::ModelOptions& options) {
  return shard::make_model_tree(*nn::make_decoder(options, at::kMeta)).outline;
}

}  // namespace fsdp::testing
