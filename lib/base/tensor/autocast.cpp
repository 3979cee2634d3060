#include "base/tensor/autocast.h"

#include <ATen/autocast_mode.h>

namespace fsdp::util {

using at::autocast::is_autocast_available;

std::optional<at::ScalarType> autocast_type(at::Device device) {
  const at::DeviceType type = device.type();
  if (!is_autocast_available(type) || !at::autocast::is_autocast_enabled(type)) return std::nullopt;
  return at::autocast::get_autocast_dtype(type);
}

AutocastState::Region AutocastState::Region::current(at::DeviceType device) {
  return {device, at::autocast::is_autocast_enabled(device), at::autocast::get_autocast_dtype(device)};
}

void AutocastState::Region::enter() const {
  at::autocast::set_autocast_enabled(device, enabled);
  at::autocast::set_autocast_dtype(device, type);
}

AutocastState::AutocastState(at::Device device) {
  regions_.push_back(Region::current(at::kCPU));
  if (!device.is_cpu() && is_autocast_available(device.type())) {
    regions_.push_back(Region::current(device.type()));
  }
}

NoAutocastCache::NoAutocastCache() : before_(at::autocast::is_autocast_cache_enabled()) {
  at::autocast::set_autocast_cache_enabled(false);
}

NoAutocastCache::~NoAutocastCache() { at::autocast::set_autocast_cache_enabled(before_); }

AutocastScope::AutocastScope(const AutocastState& state) {
  for (const AutocastState::Region& region : state.regions_) {
    before_.push_back(AutocastState::Region::current(region.device));
    region.enter();
  }
}

AutocastScope::~AutocastScope() {
  for (const AutocastState::Region& region : before_) region.enter();
}

}  // namespace fsdp::util
