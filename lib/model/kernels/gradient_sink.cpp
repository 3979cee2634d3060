#include "model/kernels/gradient_sink.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/util/error.h"

namespace fsdp::kernels {
namespace {

thread_local TakenPlaces* witness = nullptr;
thread_local bool all_are_seen = false;

/// Whether this is backward() without a choice of inputs.
bool is_pass_over_all_leaves() {
  const auto* chosen = torch::autograd::get_current_graph_task_exec_info();
  return chosen == nullptr || chosen->empty();
}

}  // namespace

std::optional<GradientSink::SinkPlace> GradientSink::take(at::ScalarType dtype) {
  std::optional<SinkPlace> found = place(dtype);
  if (found) note_taken();
  return found;
}

GradientSink* gradient_sink(const at::Tensor& parameter) {
  if (!parameter.requires_grad()) return nullptr;
  const auto& hook = torch::autograd::impl::post_acc_grad_hooks(parameter);
  if (hook || !parameter.is_leaf()) return dynamic_cast<GradientSink*>(hook.get());
  // Hooks of saved tensors (base/tensor/saved_tensors.h) return another tensor with the parameter's
  // accumulator.
  const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(parameter);
  const auto* accumulate = dynamic_cast<torch::autograd::AccumulateGrad*>(accumulator.get());
  if (accumulate == nullptr) return nullptr;
  return dynamic_cast<GradientSink*>(torch::autograd::impl::post_acc_grad_hooks(accumulate->variable).get());
}

std::optional<GradientSink::SinkPlace> take_gradient_place(const at::Tensor& parameter,
                                                           at::ScalarType dtype) {
  GradientSink* sink = gradient_sink(parameter);
  if (sink == nullptr) return std::nullopt;
  auto place = sink->take(dtype);
  if (place && witness != nullptr) {
    witness->places.push_back({parameter, dtype, place->memory.const_data_ptr(), place->adds});
  }
  return place;
}

at::Tensor seen_parameter(const at::Tensor& parameter, const at::Tensor& x) {
  static const at::Tensor nothing = at::empty({0}, at::kFloat);
  if (!parameter.defined()) return nothing;
  const bool hides = x.requires_grad() && !all_are_seen && gradient_sink(parameter) != nullptr;
  return hides ? nothing : parameter;
}

std::vector<at::Tensor> seen_parameters(const std::vector<at::Tensor>& parameters, const at::Tensor& x) {
  std::vector<at::Tensor> seen;
  for (const at::Tensor& parameter : parameters) seen.push_back(seen_parameter(parameter, x));
  return seen;
}

bool any_is_trained(const std::vector<at::Tensor>& parameters) {
  return std::ranges::any_of(parameters,
                             [](const at::Tensor& parameter) { return parameter.requires_grad(); });
}

bool is_wanted(const torch::autograd::AutogradContext& context, size_t operand, const at::Tensor& parameter) {
  if (context.needs_input_grad(operand)) return true;
  return gradient_sink(parameter) != nullptr && is_pass_over_all_leaves();
}

at::Tensor deliver(const torch::autograd::AutogradContext& context, size_t operand,
                   const at::Tensor& parameter, const at::Tensor& gradient) {
  if (!gradient.defined() || context.needs_input_grad(operand)) return gradient;
  FSDP_CHECK(!parameter.grad().defined());
  at::Tensor(parameter).mutable_grad() = gradient;
  (*gradient_sink(parameter))(parameter);
  return {};
}

AllParametersSeen::AllParametersSeen() : before_(std::exchange(all_are_seen, true)) {}
AllParametersSeen::~AllParametersSeen() { all_are_seen = before_; }

TakenPlaces::TakenPlaces() {
  FSDP_CHECK(witness == nullptr);
  witness = this;
}

TakenPlaces::~TakenPlaces() { witness = nullptr; }

bool take_again(const std::vector<TakenPlace>& places) {
  // If a parameter was taken several times, only the first record shows the state before all of them.
  std::set<const void*> seen;
  for (const TakenPlace& taken : places) {
    if (!seen.insert(taken.parameter.unsafeGetTensorImpl()).second) continue;
    GradientSink* sink = gradient_sink(taken.parameter);
    const auto place = sink == nullptr ? std::nullopt : sink->place(taken.dtype);
    if (!place || place->memory.const_data_ptr() != taken.memory || place->adds != taken.adds) return false;
  }
  for (const TakenPlace& taken : places) gradient_sink(taken.parameter)->take(taken.dtype);
  return true;
}

}  // namespace fsdp::kernels
