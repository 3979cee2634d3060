#pragma once

// How the fused kernels run the loops of cpu/loops.h over the rows of tensors, on several threads. For
// tensors that can_fuse() accepts (kernels/fused.h), contiguous, seen as rows [rows, width] of their last
// dimension.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>

#include "kernels/cpu/loops.h"
#include "kernels/row_parts.h"

namespace fsdp::kernels {

inline const cpu::Loops& loops_of(const at::Tensor& x) {
  return cpu::loops(x.scalar_type() == at::kFloat ? cpu::Element::kFloat : cpu::Element::kBFloat16);
}

inline int64_t rows_of(const at::Tensor& x) { return x.numel() / std::max<int64_t>(x.size(-1), 1); }

inline char* row_of(const at::Tensor& tensor, int64_t row, int64_t width) {
  return static_cast<char*>(tensor.data_ptr()) + row * width * static_cast<int64_t>(tensor.element_size());
}

/// body(first row, rows) on several threads.
template <typename Body>
void for_rows(int64_t rows, int64_t width, const Body& body) {
  at::parallel_for(0, rows, std::max<int64_t>(1, kGrain / std::max<int64_t>(width, 1)),
                   [&](int64_t begin, int64_t end) { body(begin, end - begin); });
}

/// [parts, vectors, width] of zeros, and what they come to: [vectors, width].
at::Tensor sums_of_parts(const RowParts& parts, int64_t vectors);
at::Tensor total_of_parts(const at::Tensor& sums);

/// Sums over rows, [vectors, width] in fp32: body(first row, rows, sums) on several threads adds those of
/// some rows to its `sums`, vectors * width zeros at first.
template <typename Body>
at::Tensor sums_of_rows(const RowParts& parts, int64_t vectors, const Body& body) {
  at::Tensor sums = sums_of_parts(parts, vectors);
  auto* first = sums.data_ptr<float>();
  at::parallel_for(0, parts.count(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      body(parts.first(part), parts.rows(part), first + part * vectors * parts.width());
    }
  });
  return total_of_parts(sums);
}

/// What a backward returns for a parameter whose gradient is `sums`, in fp32: the sums in the parameter's
/// type, or nothing where they went to the parameter's place (kernels/gradient_sink.h).
at::Tensor gradient_from(const at::Tensor& sums, const at::Tensor& parameter);

}  // namespace fsdp::kernels
