#pragma once

#include "base/tensor/tensor_memory.h"

namespace fsdp::testing {

struct CountingAllocator {
  /// Counts the bytes of all CPU tensors that are allocated while it is open.
  using Scope = util::TensorMemory;
};

}  // namespace fsdp::testing
