#include "model/kernels/step_outcome.h"

#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>

#include <cstring>

#include "base/util/error.h"
#include "model/kernels/cuda/kernels.h"

namespace fsdp::kernels {
namespace {

at::Tensor on_host(const StepOutcome& outcome) {
  at::Tensor numbers = at::empty({kOutcomeNumbers}, at::kDouble);
  std::memcpy(numbers.data_ptr<double>(), &outcome, sizeof(outcome));
  return numbers;
}

}  // namespace

DeviceOutcome::DeviceOutcome(at::Device device) : outcome_(on_host({}).to(device)) {}

void DeviceOutcome::decide(const at::Tensor& sums, const at::Tensor& local_loss, const OutcomeRule& rule) {
  for (const at::Tensor* x : {&sums, &local_loss}) {
    FSDP_CHECK(x->device() == outcome_.device() && x->is_contiguous(), x->device());
  }
  FSDP_CHECK(sums.numel() == 2 && local_loss.numel() == 1, sums.sizes());
  const auto *from = sums.const_data_ptr<double>(), *local = local_loss.const_data_ptr<double>();
  auto* outcome = reinterpret_cast<StepOutcome*>(outcome_.data_ptr<double>());
  if (outcome_.is_cpu()) return rule.decide(from[0], from[1], *local, *outcome);
  FSDP_CHECK(outcome_.is_cuda(), outcome_.device());
  const c10::DeviceGuard guard(outcome_.device());
  cuda::decide_outcome({.sums = from, .local_loss = local, .rule = rule, .outcome = outcome});
}

at::Tensor DeviceOutcome::gradient_scale() const {
  return outcome_[offsetof(StepOutcome, gradient_scale) / sizeof(double)];
}

StepOutcome DeviceOutcome::read() const {
  StepOutcome outcome;
  const at::Tensor here = outcome_.cpu();
  std::memcpy(static_cast<void*>(&outcome), here.const_data_ptr<double>(), sizeof(outcome));
  return outcome;
}

}  // namespace fsdp::kernels
