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

PartTotal ParameterSums::total(int64_t vector, int64_t sample, const at::Tensor& to, bool adds) const {
  FSDP_CHECK(to.is_contiguous() && to.numel() == parts_.width() && to.device() == sums_.device(), to.sizes());
  return {.sums = of(vector) + sample * parts_.of_sample() * parts_.width(),
          .parts = parts_.of_sample(),
          .width = parts_.width(),
          .to = to.data_ptr(),
          .to_fp32 = to.scalar_type() == at::kFloat,
          .adds = adds};
}

void ParameterSums::run(const std::vector<PartTotal>& totals) const {
  FSDP_CHECK(std::ssize(totals) <= kMostTotals, totals.size());
  if (!totals.empty()) KernelsFor(element_, sums_.device())->totals(totals.data(), std::ssize(totals));
}

std::vector<at::Tensor> ParameterSums::gradients(const std::vector<at::Tensor>& parameters) const {
  std::vector<at::Tensor> results(parameters.size());
  std::vector<PartTotal> totals;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& parameter = parameters[i];
    const auto vector = static_cast<int64_t>(i);
    if (!parameter.defined()) continue;
    if (const SampleSums* sums = SampleSums::current()) {
      results[i] = gradient_along_tree(parameter, sums->samples(), [&](int64_t sample, const at::Tensor& to) {
        run({total(vector, sample, to, /*adds=*/false)});
      });
    } else if (const auto place = take_gradient_place(parameter, at::kFloat)) {
      totals.push_back(total(vector, 0, place->memory, place->adds));
    } else {
      FSDP_CHECK(element_of(parameter) == element_, parameter.scalar_type());
      results[i] = at::empty(parameter.sizes(), parameter.options().requires_grad(false));
      totals.push_back(total(vector, 0, results[i], /*adds=*/false));
    }
  }
  run(totals);
  return results;
}

at::Tensor gradient_of_bias(const at::Tensor& dy, const at::Tensor& bias) {
  FSDP_CHECK(can_fuse(dy) && dy.is_contiguous());
  ParameterSums sums(dy, 1);
  KernelsFor(dy)->add_rows(dy.data_ptr(), sums.of(0), sums.parts());
  return sums.gradients({bias})[0];
}

}  // namespace fsdp::kernels
