#pragma once

#include "shard/unit.h"

namespace fsdp::shard {

/// Shared with the communication streams, which release the input when it has been sent.
struct Unit::Reduction {
  at::Tensor input, output;
  at::Tensor of_slice;  ///< the input of a second reduction
  at::Tensor on_host;   ///< the output, where gradients are kept there
};

}  // namespace fsdp::shard
