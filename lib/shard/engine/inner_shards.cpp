#include "shard/engine/inner_shards.h"

#include <ATen/core/grad_mode.h>

#include "base/tensor/rectangle_view.h"
#include "shard/engine/layout_views.h"

namespace fsdp::shard {

void InnerShards::add(std::vector<std::unique_ptr<Unit>> units, at::Device device) {
  if (others_.source == nullptr) others_.device = device;
  for (auto& each : units) {
    const std::shared_ptr<Unit> unit = std::move(each);
    const auto& parameters = unit->storage().parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      places_[parameters[i].tensor.unsafeGetTensorImpl()] = {.unit = unit, .index = i};
    }
  }
}

Materialize InnerShards::materialize() {
  return places_.empty() ? others_ : Materialize{.source = this, .device = others_.device};
}

void InnerShards::read(const NamedParameter& parameter, const std::vector<util::Rectangle>& parts,
                       const at::Tensor& out) {
  const auto place = places_.extract(parameter.tensor.unsafeGetTensorImpl());
  if (!place) {
    require_source(others_, parameter.name);
    return others_.source->read(parameter, parts, out);
  }
  at::NoGradGuard no_grad;
  const auto& [unit, index] = place.mapped();
  if (gathered_unit_ != unit.get()) gathered_ = unit->gather_weights();
  gathered_unit_ = unit.get();
  const at::Tensor whole = whole_view(unit->storage().layout(), index, gathered_);
  util::for_each_part(parts, out, [&whole](const util::Rectangle& part, at::Tensor values) {
    values.view({part.height(), part.length()}).copy_(util::rectangle_view(whole, part));
  });
  if (unit.use_count() > 1) return;
  gathered_.reset();
  gathered_unit_ = nullptr;
}

void InnerShards::read_buffer(const NamedTensor& buffer) {
  if (others_.source != nullptr) others_.source->read_buffer(buffer);
}

}  // namespace fsdp::shard
