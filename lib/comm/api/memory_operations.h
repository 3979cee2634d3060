#pragma once

// Operations of collectives on host memory: copies, and sums in rank order, which have the same bits in every
// backend that uses them.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "comm/api/communicator.h"

namespace fsdp::comm {

/// Whether sums of this type are accumulated in float32 and rounded once (bfloat16, float16).
bool sums_in_float(at::ScalarType dtype);

/// out [n] = parts[0] + parts[1] + ..., each [n]. float32 is added in pairs, (0 + 1) + (2 + 3) and so on; the
/// rest behind the largest power of two (of 5 parts, the last) is added at the end. Other types are added one
/// after another. `out` may be one of the parts, but must not overlap a part in any other way.
void sum_in_rank_order(const at::Tensor& out, const std::vector<at::Tensor>& parts);

/// The same on contiguous memory, for both operations: out [numel] = parts[0] op parts[1] op .... The maximum
/// is NaN if any part is. Sums of bools are "or". Types: floating point, integers, bool.
void reduce_in_rank_order(void* out, const std::vector<const void*>& parts, int64_t numel,
                          at::ScalarType dtype, ReduceOp op);

/// out [numel] = the sum of float32 parts as by reduce_in_rank_order(), followed by `finish`, in one pass
/// over memory.
void sum_and_finish(float* out, const std::vector<const void*>& parts, int64_t numel,
                    const FinishSums& finish);
/// Calls `finish` for existing sums: contiguous float32 in host memory.
void finish_sums(const at::Tensor& sums, const FinishSums& finish);

/// out [numel] = the sum of bfloat16 or float16 parts in rank order, not rounded; for sums in two stages that
/// are rounded after the second.
void sum_unrounded(float* out, const std::vector<const void*>& parts, int64_t numel, at::ScalarType dtype);

/// An uninitialised tensor [numel] in `memory`, which grows as needed and is reused: fresh memory costs a
/// page fault per 4 KiB. `allocate` returns so many bytes; by default libtorch does.
at::Tensor scratch(at::Tensor& memory, int64_t numel, at::ScalarType dtype,
                   const std::function<at::Tensor(int64_t bytes)>& allocate = nullptr);

/// memcpy() that writes large parts around the cache. The copy may be shown to other processes at once.
void copy_memory(void* to, const void* from, int64_t bytes);

/// Bytes that the copies and reductions above have read and written in this process so far.
struct MovedBytes {
  int64_t read = 0, written = 0;
};
MovedBytes moved_bytes();

}  // namespace fsdp::comm
