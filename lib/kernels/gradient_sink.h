#pragma once

// Where the gradient of a parameter goes when it is not to stay in parameter.grad: its place in a buffer of
// gradients. A product whose backward finds a sink at its weight adds the gradient there itself and gives
// autograd none, so that no gradient exists beside the buffer.

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function_hook.h>

#include <optional>

namespace fsdp::kernels {

/// Hangs at the parameter as the hook that autograd calls when it has put a gradient into parameter.grad,
/// which is the way of all who know nothing of sinks; autograd calls it too, with parameter.grad undefined,
/// after a backward that gave it none.
class GradientSink : public torch::autograd::PostAccumulateGradHook {
 public:
  struct Place {
    at::Tensor memory;  ///< of the parameter's shape, contiguous
    bool adds;          ///< to what is there; else it is to be overwritten
  };

  /// The caller will put the whole of a gradient of type `dtype` there. Nothing if that is not what the sink
  /// holds, or not in one piece.
  virtual std::optional<Place> take(at::ScalarType dtype) = 0;
};

/// That of the parameter, or null.
GradientSink* gradient_sink(const at::Tensor& parameter);

/// Where its gradient of type `dtype` is to go, if there is such a place.
std::optional<GradientSink::Place> take_gradient_place(const at::Tensor& parameter, at::ScalarType dtype);

}  // namespace fsdp::kernels
