#pragma once

// Gradient sinks: a parameter's place in a gradient buffer, to be used instead of parameter.grad. If a
// product's weight has a sink, backward adds the gradient there and returns none to autograd, so that no
// gradient tensor is allocated besides the buffer.

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function_hook.h>

#include <optional>
#include <vector>

namespace fsdp::kernels {

/// Is attached to the parameter as the hook that autograd calls after it has accumulated into parameter.grad,
/// for operations that do not use sinks. Autograd also calls it, with parameter.grad undefined, after a
/// backward that returned no gradient.
class GradientSink : public torch::autograd::PostAccumulateGradHook {
 public:
  struct Place {
    at::Tensor memory;  ///< of the parameter's shape, contiguous
    bool adds;          ///< to the former contents; else these are to be overwritten
  };

  /// The place for a whole gradient of type `dtype`; none if the sink has another type, or not in one piece.
  virtual std::optional<Place> place(at::ScalarType dtype) const = 0;
  /// As place(); the caller must write the gradient there.
  std::optional<Place> take(at::ScalarType dtype);

 protected:
  /// From now on, place() returns `adds`.
  virtual void note_taken() = 0;
};

/// The parameter's sink, or null.
GradientSink* gradient_sink(const at::Tensor& parameter);

/// take() of the parameter's sink; none without a sink.
std::optional<GradientSink::Place> take_gradient_place(const at::Tensor& parameter, at::ScalarType dtype);

/// A place returned by take_gradient_place().
struct TakenPlace {
  at::Tensor parameter;
  at::ScalarType dtype;
  const void* memory;
  bool adds;
};

/// Records results of take_gradient_place() on this thread; one object at a time per thread.
class TakenPlaces {
 public:
  TakenPlaces();
  ~TakenPlaces();
  TakenPlaces(const TakenPlaces&) = delete;
  TakenPlaces& operator=(const TakenPlaces&) = delete;

  /// In the order of the calls.
  std::vector<TakenPlace> places;
};

/// Takes the same places again, unless an address or `adds` has changed: then takes none and returns false.
bool take_again(const std::vector<TakenPlace>& places);

}  // namespace fsdp::kernels
