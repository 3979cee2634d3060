#pragma once

#include <ATen/core/Tensor.h>

namespace fsdp::kernels {

/// The rows `ids` of a table. weight: [V, D], ids: [...] int64 in [0, V) -> [..., D]
///
/// The gradient of a row is added to the table's gradient where that accumulates (gradient_sink.h); without
/// such a place, or for other types than can_fuse() accepts (kernels/fused.h), it comes as a table of its
/// own.
at::Tensor embedding(const at::Tensor& weight, const at::Tensor& ids);

}  // namespace fsdp::kernels
