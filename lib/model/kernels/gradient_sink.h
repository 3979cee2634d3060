#pragma once

// Gradient sinks: a parameter's place in a gradient buffer, to be used instead of parameter.grad. If a
// product's weight has a sink, backward adds the gradient there and returns none to autograd, so that no
// gradient tensor is allocated besides the buffer.

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/custom_function.h>
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

/// The parameter's sink, or null; null for one that requires no gradient.
GradientSink* gradient_sink(const at::Tensor& parameter);

/// take() of the parameter's sink; none without a sink.
std::optional<GradientSink::Place> take_gradient_place(const at::Tensor& parameter, at::ScalarType dtype);

// ---- Parameters of autograd functions
//
// For each parameter that autograd sees it runs a node more, AccumulateGrad, which costs the host about as much as
// two launches of kernels and would only call the sink. So a function gets what autograd is to see of a parameter,
// seen_parameter(), and the parameter itself in Parameters; backward asks is_wanted() and returns deliver().

/// Tensors that autograd does not look into.
struct Parameters {
  std::vector<at::Tensor> tensors;
};

/// An empty tensor for a parameter that is undefined or has a sink, but for the latter only if `x`, another operand, requires a gradient:
/// otherwise autograd would take the result for one that needs none. Else the parameter.
at::Tensor seen_parameter(const at::Tensor& parameter, const at::Tensor& x);
std::vector<at::Tensor> seen_parameters(const std::vector<at::Tensor>& parameters, const at::Tensor& x);

/// Whether any of the parameters is trained: where none is, backward does not need what their gradients are made of.
bool any_is_trained(const std::vector<at::Tensor>& parameters);

/// Whether a gradient of the parameter, seen by autograd as operand number `operand`, is to be computed. Those of
/// unseen ones are in a pass over all leaves only, and not by torch::autograd::grad().
bool is_wanted(const torch::autograd::AutogradContext& context, size_t operand, const at::Tensor& parameter);

/// What backward returns for that operand: the gradient, or nothing, if the sink has got it.
at::Tensor deliver(const torch::autograd::AutogradContext& context, size_t operand,
                   const at::Tensor& parameter, const at::Tensor& gradient);

/// While it lives, autograd sees all parameters on this thread: a recorded graph of launches writes to fixed
/// places, and AccumulateGrad, which runs outside of it, brings the gradients from there.
class AllParametersSeen {
 public:
  AllParametersSeen();
  ~AllParametersSeen();
  AllParametersSeen(const AllParametersSeen&) = delete;
  AllParametersSeen& operator=(const AllParametersSeen&) = delete;

 private:
  bool before_;
};

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
