#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace fsdp::comm {

/// Whether sums of this type are taken in float32 and rounded once (bfloat16, float16).
bool sums_in_float(at::ScalarType dtype);

/// out [n] = parts[0] + parts[1] + ..., each [n], added in this order, so that every backend gets the same
/// bits. `out` must not share memory with a part.
void sum_in_rank_order(const at::Tensor& out, const std::vector<at::Tensor>& parts);

}  // namespace fsdp::comm
