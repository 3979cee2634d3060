#pragma once

// How much more than its tensors a process may hold, as util::MappedAllocator keeps to it and a plan reports
// it. Needs no libtorch.

#include <cstdint>

namespace fsdp::util {

/// What all blocks of the allocator take at most, where tensors take `peak_bytes` at most.
constexpr int64_t most_held_bytes(int64_t peak_bytes) { return peak_bytes + peak_bytes / 5; }

}  // namespace fsdp::util
