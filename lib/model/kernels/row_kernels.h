#pragma once

// Selects the table of kernels (kernel_table.h) for a tensor.

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>

#include "model/kernels/kernel_table.h"

namespace fsdp::kernels {

/// The kernels for a tensor that can_fuse() accepts (model/kernels/fused.h). The tensor's device is the
/// current one during the object's lifetime.
class KernelsFor {
 public:
  explicit KernelsFor(const at::Tensor& x);
  KernelsFor(Element element, const c10::Device& device);
  const RowKernels* operator->() const { return &kernels_; }

 private:
  const RowKernels& kernels_;
  c10::DeviceGuard guard_;
};

const RowKernels& cpu_row_kernels(Element element);

inline Element element_of(const at::Tensor& x) {
  if (x.scalar_type() == at::kBFloat16) return Element::kBFloat16;
  return x.scalar_type() == at::kHalf ? Element::kHalf : Element::kFloat;
}

/// Number of rows of the last dimension.
inline int64_t rows_of(const at::Tensor& x) { return x.numel() / std::max<int64_t>(x.size(-1), 1); }

inline void* data_or_null(const at::Tensor& x) { return x.defined() ? x.data_ptr() : nullptr; }

}  // namespace fsdp::kernels
