#pragma once

// Gradient sinks: a parameter's place in a gradient buffer, used instead of parameter.grad. If a product's
// weight has a sink, backward adds the gradient there and returns none to autograd, so that no gradient
// tensor is allocated besides the buffer.

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <optional>
#include <vector>

namespace fsdp::kernels {

/// A sink, attached to the parameter as the hook that autograd calls after it has accumulated into
/// parameter.grad, for operations that do not use sinks. Autograd also calls it, with parameter.grad
/// undefined, after a backward that returned no gradient.
class GradientSink : public torch::autograd::PostAccumulateGradHook {
 public:
  struct SinkPlace {
    at::Tensor memory;  ///< memory of the parameter's shape, contiguous
    bool adds;          ///< whether to add to the contents; otherwise they are overwritten
  };

  /// Returns the place for a gradient of type `dtype`; none for another type or memory in pieces.
  virtual std::optional<SinkPlace> place(at::ScalarType dtype) const = 0;
  /// Like place(), but the caller must write the gradient there.
  std::optional<SinkPlace> take(at::ScalarType dtype);

 protected:
  /// Makes place() return `adds` = true from now on.
  virtual void note_taken() = 0;
};

/// Returns the parameter's sink; null if there is none, or if the parameter requires no gradient.
GradientSink* gradient_sink(const at::Tensor& parameter);

/// Calls take() of the parameter's sink; returns none without a sink.
std::optional<GradientSink::SinkPlace> take_gradient_place(const at::Tensor& parameter, at::ScalarType dtype);

// ---- Parameters of autograd functions
//
// For each parameter that autograd sees it runs another node, AccumulateGrad, which costs the host about as
// much as two launches of kernels and would only call the sink. So a function gets seen_parameter(), the
// tensor that autograd sees in the parameter's place, and the parameter itself in Parameters. Its backward
// asks is_wanted() and returns deliver().

/// Tensors that are hidden from autograd.
struct Parameters {
  std::vector<at::Tensor> tensors;
};

/// Returns an empty tensor for a parameter that is undefined, or that has a sink while `x`, another operand,
/// requires a gradient (otherwise autograd would assume that the result requires none). Returns the parameter
/// in all other cases.
at::Tensor seen_parameter(const at::Tensor& parameter, const at::Tensor& x);
std::vector<at::Tensor> seen_parameters(const std::vector<at::Tensor>& parameters, const at::Tensor& x);

/// Whether a parameter is trained. If none is, backward does not need the operands of their gradients.
bool any_is_trained(const std::vector<at::Tensor>& parameters);

/// Whether a gradient of the parameter, seen by autograd as operand number `operand`, must be computed.
/// Gradients of hidden parameters are computed in a pass over all leaves only, not by
/// torch::autograd::grad().
bool is_wanted(const torch::autograd::AutogradContext& context, size_t operand, const at::Tensor& parameter);

/// Returns the result of backward for that operand: the gradient, or nothing if the sink has received it.
at::Tensor deliver(const torch::autograd::AutogradContext& context, size_t operand,
                   const at::Tensor& parameter, const at::Tensor& gradient);

/// During the object's lifetime, autograd sees all parameters on this thread. A recorded graph of launches
/// writes to fixed places; AccumulateGrad, which runs outside of it, moves the gradients from there.
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

  /// Places in the order of the calls.
  std::vector<TakenPlace> places;
};

/// Takes the same places again. If an address or `adds` has changed, takes none and returns false.
bool take_again(const std::vector<TakenPlace>& places);

}  // namespace fsdp::kernels
