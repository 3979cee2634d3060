#include "model/kernels/reduce.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <array>

#include "base/util/error.h"
#include "model/kernels/cpu/loops.h"
#include "model/kernels/fused.h"
#include "model/kernels/gradient_sink.h"
#include "model/kernels/meta.h"
#include "model/kernels/sample_sums.h"

namespace fsdp::kernels {

at::Tensor sums_of_squares_on_device(const std::vector<at::Tensor>& tensors) {
  FSDP_CHECK(!tensors.empty());
  const at::Tensor sums =
      at::empty({static_cast<int64_t>(tensors.size())}, tensors.front().options().dtype(at::kDouble));
  sums_of_squares_into(sums, tensors);
  return sums;
}

void sums_of_squares_into(const at::Tensor& sums, const std::vector<at::Tensor>& tensors) {
  const at::Tensor scratch = at::empty({kSquareParts}, sums.options());
  for (int64_t i = 0; i < sums.numel(); ++i) {
    const at::Tensor& x = tensors[static_cast<size_t>(i)];
    FSDP_CHECK(can_fuse(x) && x.is_contiguous() && x.device() == sums.device());
    KernelsFor(x)->sum_of_squares(x.const_data_ptr(), x.numel(), scratch.data_ptr<double>(),
                                  sums.data_ptr<double>() + i);
  }
}

std::vector<double> sums_of_squares(const std::vector<at::Tensor>& tensors) {
  if (tensors.empty()) return {};
  const at::Tensor here = sums_of_squares_on_device(tensors).cpu();
  const auto* first = here.const_data_ptr<double>();
  return {first, first + here.numel()};
}

double divide_run(float* x, int64_t n, double divisor) {
  if (divisor != 1) cpu::divide(x, n, static_cast<float>(divisor));
  return cpu::loops(Element::kFloat).sum_of_squares(x, n);
}

namespace {

/// Number of the thread's samples; 1: one sum over all rows.
int64_t samples_of(int64_t rows) {
  const SampleSums* sums = SampleSums::current();
  return sums == nullptr ? 1 : rows / sums->rows_of_sample(rows);
}

}  // namespace

ParameterSums::ParameterSums(const at::Tensor& x, int64_t vectors)
    : element_(element_of(x)),
      parts_(rows_of(x), x.size(-1), is_for_cpu(x) ? RowParts::kCpu : RowParts::kDevice,
             samples_of(rows_of(x))) {
  const auto options = x.options().dtype(at::kFloat);
  const std::array<int64_t, 3> shape{vectors, parts_.count(), parts_.width()};
  sums_ = is_for_cpu(x) ? at::zeros(shape, options) : at::empty(shape, options);
}

float* ParameterSums::of(int64_t vector) const {
  return sums_.data_ptr<float>() + vector * parts_.count() * parts_.width();
}

void ParameterSums::total_into(const Total& total) const {
  const auto& [vector, sample, to, adds] = total;
  FSDP_CHECK(to.is_contiguous() && to.numel() == parts_.width() && to.device() == sums_.device(), to.sizes());
  KernelsFor(element_, sums_.device())
      ->total({.sums = of(vector) + sample * parts_.of_sample() * parts_.width(),
               .parts = parts_.of_sample(),
               .width = parts_.width(),
               .to = to.data_ptr(),
               .to_fp32 = to.scalar_type() == at::kFloat,
               .adds = adds});
}

at::Tensor ParameterSums::gradient(int64_t vector, const at::Tensor& parameter) const {
  if (const SampleSums* sums = SampleSums::current()) {
    return gradient_along_tree(parameter, sums->samples(), [&](int64_t sample, const at::Tensor& to) {
      total_into({.vector = vector, .sample = sample, .to = to});
    });
  }
  if (auto place = take_gradient_place(parameter, at::kFloat)) {
    total_into({.vector = vector, .to = place->memory, .adds = place->adds});
    return {};
  }
  FSDP_CHECK(element_of(parameter) == element_, parameter.scalar_type());
  at::Tensor gradient = at::empty(parameter.sizes(), parameter.options().requires_grad(false));
  total_into({.vector = vector, .to = gradient});
  return gradient;
}

at::Tensor gradient_of_bias(const at::Tensor& dy, const at::Tensor& bias) {
  FSDP_CHECK(can_fuse(dy) && dy.is_contiguous());
  ParameterSums sums(dy, 1);
  KernelsFor(dy)->add_rows(dy.data_ptr(), sums.of(0), sums.parts());
  return sums.gradient(0, bias);
}

}  // namespace fsdp::kernels
