#include "kernels/row_loops.h"

#include <ATen/ops/zeros.h>

#include "kernels/gradient_sink.h"

namespace fsdp::kernels {

at::Tensor sums_of_parts(const RowParts& parts, int64_t vectors) {
  return at::zeros({parts.count(), vectors, parts.width()}, at::kFloat);
}

at::Tensor total_of_parts(const at::Tensor& sums) {
  const int64_t parts = sums.size(0), size = sums.size(1) * sums.size(2);
  auto* first = sums.data_ptr<float>();
  loops_of(sums).add_rows(first + size, first, parts - 1, size);
  return sums[0];
}

at::Tensor gradient_from(const at::Tensor& sums, const at::Tensor& parameter) {
  if (auto place = take_gradient_place(parameter, at::kFloat)) {
    if (place->adds) {
      place->memory.add_(sums);
    } else {
      place->memory.copy_(sums);
    }
    return {};
  }
  return sums.to(parameter.scalar_type());
}

}  // namespace fsdp::kernels
