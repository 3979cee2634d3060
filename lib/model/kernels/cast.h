#pragma once

#include <ATen/core/Tensor.h>

namespace fsdp::kernels {

/// Does to.copy_(from) for contiguous tensors of one size. A large copy from fp32 to bf16 on the CPU bypasses
/// the cache (base/util/past_cache.h), which libtorch's copy does not.
void cast(const at::Tensor& to, const at::Tensor& from);

}  // namespace fsdp::kernels
