#include "model/kernels/below_autograd.h"

#include <ATen/ops/as_strided.h>
#include <ATen/ops/as_strided_native.h>

namespace fsdp::kernels {

at::Tensor strided_view(const at::Tensor& x, at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset) {
  const int64_t first = x.storage_offset() + offset;
  if (x.is_cpu() || x.is_cuda()) return at::native::as_strided_tensorimpl(x, sizes, strides, first);
  const BelowAutograd below;
  return at::as_strided(x, sizes, strides, first);
}

}  // namespace fsdp::kernels
