#include "model/kernels/joined_weights.h"

#include <vector>

#include "model/kernels/below_autograd.h"

namespace fsdp::kernels {

bool lie_in_sequence(at::TensorList parts) {
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!parts[i].is_contiguous()) return false;
    if (i > 0 && (!parts[i].is_alias_of(parts[0]) ||
                  parts[i].storage_offset() != parts[i - 1].storage_offset() + parts[i - 1].numel())) {
      return false;
    }
  }
  return true;
}

at::Tensor joined(at::TensorList parts) {
  int64_t rows = 0;
  for (const at::Tensor& part : parts) rows += part.size(0);
  const int64_t columns = parts[0].size(1);
  if (parts[0].is_meta()) return parts[0].detach().narrow(0, 0, 1).expand({rows, columns});
  return strided_view(parts[0], {rows, columns}, {columns, 1});
}

std::optional<GradientSink::SinkPlace> take_joined_place(at::TensorList weights, at::ScalarType type,
                                                         std::optional<at::ScalarType> or_type) {
  std::vector<at::Tensor> places;
  bool adds = false;
  for (const at::Tensor& weight : weights) {
    const GradientSink* sink = gradient_sink(weight);
    const auto place = sink == nullptr ? std::nullopt : sink->place(type);
    if (!place && or_type) return take_joined_place(weights, *or_type);
    if (!place || (!places.empty() && place->adds != adds)) return std::nullopt;
    adds = place->adds;
    places.push_back(place->memory);
  }
  if (!lie_in_sequence(places)) return std::nullopt;
  for (const at::Tensor& weight : weights) take_gradient_place(weight, type);
  return GradientSink::SinkPlace{joined(places), adds};
}

}  // namespace fsdp::kernels
