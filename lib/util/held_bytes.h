#pragma once

// How much more than its tensors a process may hold, as util::MappedAllocator keeps to it and a plan reports
// it. Needs no libtorch.

#include <algorithm>
#include <cstdint>

namespace fsdp::util {

/// What all blocks of the allocator take at most, where tensors take `peak_bytes` at most. The fixed part
/// lets a small model, few of whose blocks are alike in size, keep what each step needs again.
constexpr int64_t most_held_bytes(int64_t peak_bytes) {
  constexpr int64_t kLeastSpare = 16 << 20;
  return peak_bytes + std::max(peak_bytes / 5, kLeastSpare);
}

}  // namespace fsdp::util
