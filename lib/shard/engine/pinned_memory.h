#pragma once

// Host memory that a device copies from and to beside the host: of shards and gradients that are offloaded.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace fsdp::shard {

/// [numel], not initialized. On GPUs its memory has exactly the size of the elements, where libtorch would take
/// the next power of two, and copies must have ended when the last reference goes.
at::Tensor empty_pinned(int64_t numel, at::ScalarType type, at::Device device);

}  // namespace fsdp::shard
