#include "kernels/gradient_sink.h"

#include <torch/csrc/autograd/variable.h>

#include <set>

#include "util/error.h"

namespace fsdp::kernels {
namespace {

thread_local TakenPlaces* witness = nullptr;

}  // namespace

std::optional<GradientSink::Place> GradientSink::take(at::ScalarType dtype) {
  std::optional<Place> found = place(dtype);
  if (found) note_taken();
  return found;
}

GradientSink* gradient_sink(const at::Tensor& parameter) {
  return dynamic_cast<GradientSink*>(torch::autograd::impl::post_acc_grad_hooks(parameter).get());
}

std::optional<GradientSink::Place> take_gradient_place(const at::Tensor& parameter, at::ScalarType dtype) {
  GradientSink* sink = gradient_sink(parameter);
  if (sink == nullptr) return std::nullopt;
  auto place = sink->take(dtype);
  if (place && witness != nullptr) {
    witness->places.push_back({parameter, dtype, place->memory.const_data_ptr(), place->adds});
  }
  return place;
}

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
