#include "kernels/gradient_sink.h"

#include <torch/csrc/autograd/variable.h>

namespace fsdp::kernels {

GradientSink* gradient_sink(const at::Tensor& parameter) {
  return dynamic_cast<GradientSink*>(torch::autograd::impl::post_acc_grad_hooks(parameter).get());
}

std::optional<GradientSink::Place> take_gradient_place(const at::Tensor& parameter, at::ScalarType dtype) {
  GradientSink* sink = gradient_sink(parameter);
  return sink != nullptr ? sink->take(dtype) : std::nullopt;
}

}  // namespace fsdp::kernels
