#include "shard/unit_layout.h"

#include "shard/flat_layout.h"
#include "shard/per_parameter_layout.h"

namespace fsdp::shard {

UnitLayout::UnitLayout(const std::vector<Parameter>& parameters, int world_size) : world_size_(world_size) {
  for (const Parameter& parameter : parameters) {
    int64_t count = 1;
    for (int64_t size : parameter.shape) count *= size;
    parameters_.push_back({parameter.name, parameter.shape, count, numel_});
    numel_ += count;
  }
}

std::unique_ptr<UnitLayout> make_layout(util::Named<Layout> layout,
                                        const std::vector<UnitLayout::Parameter>& parameters,
                                        int world_size) {
  if (layout == Layout::kPerParameter) return std::make_unique<PerParameterLayout>(parameters, world_size);
  return std::make_unique<FlatLayout>(parameters, world_size);
}

}  // namespace fsdp::shard
