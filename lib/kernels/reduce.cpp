#include "kernels/reduce.h"

#include <ATen/ops/empty.h>

#include "kernels/fused.h"
#include "kernels/parameter_sums.h"
#include "kernels/row_kernels.h"
#include "util/error.h"

namespace fsdp::kernels {

double sum_of_squares(const at::Tensor& x) { return sums_of_squares({x}).front(); }

std::vector<double> sums_of_squares(const std::vector<at::Tensor>& tensors) {
  if (tensors.empty()) return {};
  const auto count = static_cast<int64_t>(tensors.size());
  const auto options = tensors.front().options().dtype(at::kDouble);
  const at::Tensor sums = at::empty({count}, options), scratch = at::empty({kSquareParts}, options);
  for (int64_t i = 0; i < count; ++i) {
    const at::Tensor& x = tensors[static_cast<size_t>(i)];
    FSDP_CHECK(can_fuse(x) && x.is_contiguous() && x.device() == sums.device());
    KernelsFor(x)->sum_of_squares(x.const_data_ptr(), x.numel(), scratch.data_ptr<double>(),
                                  sums.data_ptr<double>() + i);
  }
  const at::Tensor here = sums.cpu();
  const auto* first = here.const_data_ptr<double>();
  return {first, first + count};
}

at::Tensor gradient_of_bias(const at::Tensor& dy, const at::Tensor& bias) {
  FSDP_CHECK(can_fuse(dy) && dy.is_contiguous());
  ParameterSums sums(dy, 1);
  KernelsFor(dy)->add_rows(dy.data_ptr(), sums.of(0), sums.parts());
  return sums.gradient(0, bias);
}

}  // namespace fsdp::kernels
