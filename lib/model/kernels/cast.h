#pragma once

#include <ATen/core/Tensor.h>

namespace fsdp::kernels {

/// to.copy_(from) of contiguous tensors of one size. fp32 to bf16 on the CPU is written past the cache if it is large
/// (base/util/past_cache.h), in which libtorch's copy takes 1.4 times as long.
void cast(const at::Tensor& to, const at::Tensor& from);

}  // namespace fsdp::kernels
