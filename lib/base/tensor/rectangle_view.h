#pragma once

#include <ATen/core/Tensor.h>

#include "base/util/rectangle.h"

namespace fsdp::util {

/// Returns `part` of a contiguous tensor as a view, [height, length].
inline at::Tensor rectangle_view(const at::Tensor& whole, const Rectangle& part) {
  return whole.view({part.rows, whole.numel() / part.rows})
      .narrow(0, part.row_begin, part.height())
      .narrow(1, part.begin, part.length());
}

/// Calls use(part, elements) for each part; `values`, [n], has the elements, part by part.
template <typename Rectangles, typename Use>
void for_each_part(const Rectangles& parts, const at::Tensor& values, const Use& use) {
  int64_t begin = 0;
  for (const Rectangle& part : parts) {
    use(part, values.narrow(0, begin, part.numel()));
    begin += part.numel();
  }
}

}  // namespace fsdp::util
