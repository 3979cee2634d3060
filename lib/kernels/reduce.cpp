#include "kernels/reduce.h"

#include <ATen/ops/empty.h>

#include "kernels/fused.h"
#include "kernels/parameter_sums.h"
#include "kernels/row_kernels.h"
#include "util/error.h"

namespace fsdp::kernels {
namespace {

ParameterSums summed_rows(const at::Tensor& x) {
  FSDP_CHECK(can_fuse(x) && x.is_contiguous());
  ParameterSums sums(x, 1);
  KernelsFor(x)->add_rows(x.data_ptr(), sums.of(0), sums.parts());
  return sums;
}

}  // namespace

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
  return summed_rows(dy).gradient(0, bias);
}

at::Tensor sum_of_rows(const at::Tensor& x) { return summed_rows(x).total(0); }

}  // namespace fsdp::kernels
