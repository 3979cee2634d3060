#pragma once

// Where the gradient of a parameter goes when it is not to stay in parameter.grad: its place in a buffer of
// gradients. A product whose backward finds a sink at its weight adds the gradient there itself and gives
// autograd none, so that no gradient exists beside the buffer.

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function_hook.h>

#include <optional>
#include <vector>

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

  /// Where the whole of a gradient of type `dtype` would go. Nothing if that is not what the sink holds, or
  /// not in one piece.
  virtual std::optional<Place> place(at::ScalarType dtype) const = 0;
  /// The caller will put it there.
  std::optional<Place> take(at::ScalarType dtype);

 protected:
  /// From now on place() adds.
  virtual void note_taken() = 0;
};

/// That of the parameter, or null.
GradientSink* gradient_sink(const at::Tensor& parameter);

/// Where its gradient of type `dtype` is to go, if there is such a place.
std::optional<GradientSink::Place> take_gradient_place(const at::Tensor& parameter, at::ScalarType dtype);

/// A place that a kernel took.
struct TakenPlace {
  at::Tensor parameter;
  at::ScalarType dtype;
  const void* memory;
  bool adds;
};

/// Writes down what take_gradient_place() gives on this thread while the object lives; one at a time.
class TakenPlaces {
 public:
  TakenPlaces();
  ~TakenPlaces();
  TakenPlaces(const TakenPlaces&) = delete;
  TakenPlaces& operator=(const TakenPlaces&) = delete;

  /// In the order of taking.
  std::vector<TakenPlace> places;
};

/// Takes the same places again, if each lies where it lay and would be added to, or overwritten, as it was;
/// else takes none and returns false.
bool take_again(const std::vector<TakenPlace>& places);

}  // namespace fsdp::kernels
