#pragma once

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <optional>

#include "model/kernels/gradient_sink.h"

namespace fsdp::kernels {

/// Holds the gradient that it gets, in fp32 or another type; autograd's own way adds too.
class TestSink final : public GradientSink {
 public:
  static TestSink& attach(const at::Tensor& parameter, at::ScalarType dtype = at::kFloat) {
    auto sink = std::make_unique<TestSink>();
    sink->memory = at::full(parameter.sizes(), 3e4, parameter.options().dtype(dtype).requires_grad(false));
    TestSink& result = *sink;
    torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::move(sink));
    return result;
  }
  void operator()(const at::Tensor& parameter) override {
    if (!parameter.grad().defined()) return;
    at::NoGradGuard no_grad;
    ++by_autograd;
    const at::Tensor gradient = parameter.grad().to(memory.scalar_type());
    memory = holds ? memory + gradient : gradient;
    holds = true;
    at::Tensor(parameter).mutable_grad() = at::Tensor();
  }
  std::optional<SinkPlace> place(at::ScalarType dtype) const override {
    if (dtype != memory.scalar_type() || refuses) return std::nullopt;
    return SinkPlace{memory, holds};
  }

  at::Tensor memory;
  bool holds = false, refuses = false;
  int by_autograd = 0;

 private:
  void note_taken() override { holds = true; }
};

}  // namespace fsdp::kernels
