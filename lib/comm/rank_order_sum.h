#pragma once

// The arithmetic of reductions. Every backend uses it where it can, so that all get the same bits.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "comm/communicator.h"

namespace fsdp::comm {

/// Whether sums of this type are taken in float32 and rounded once (bfloat16, float16).
bool sums_in_float(at::ScalarType dtype);

/// out [n] = parts[0] + parts[1] + ..., each [n], added in this order.
/// `out` may be one of the parts, but must not overlap one in any other way.
void sum_in_rank_order(const at::Tensor& out, const std::vector<at::Tensor>& parts);

/// The same on contiguous memory, for both operations: out [numel] = parts[0] op parts[1] op ..., one pass
/// over the memory whatever the number of parts. A NaN in any part is the maximum. Sums of bools are "or".
/// Types: those of floating point, the integers, bool.
void reduce_in_rank_order(void* out, const std::vector<const void*>& parts, int64_t numel,
                          at::ScalarType dtype, ReduceOp op);

/// out [numel] = the sum of bfloat16 or float16 parts in that order, left in float32. For sums that are taken
/// in two stages and rounded after the second.
void sum_unrounded(float* out, const std::vector<const void*>& parts, int64_t numel, at::ScalarType dtype);

}  // namespace fsdp::comm
