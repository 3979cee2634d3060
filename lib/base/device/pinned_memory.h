#pragma once

// Host memory for offloaded shards, gradients and activations, which a device reads and writes while the host
// goes on.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace fsdp::util {

/// Returns a tensor [numel] that is not initialized. On GPUs its memory has exactly the size of the elements,
/// where libtorch would take the next power of two. Requires: copies that have ended when the last reference
/// goes.
at::Tensor empty_pinned(int64_t numel, at::ScalarType type, at::Device device);

}  // namespace fsdp::util
