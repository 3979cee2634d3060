#include "base/tensor/staged_tensors.h"

#include <ATen/ops/empty_like.h>

#include <utility>

namespace fsdp::util {

at::Tensor StagedTensors::Set::add(const at::Tensor& on_host, bool changes) {
  if (!on_host.defined() || on_host.device() == device_) return on_host;
  pairs_.push_back(
      {on_host, at::empty_like(on_host, on_host.options().device(device_).pinned_memory(false)), changes});
  return pairs_.back().on_device;
}

StagedTensors::StagedTensors(at::Device device)
    : device_(device),
      to_device_({.name = "fsdp to device", .device = device}),
      to_host_({.name = "fsdp to host", .device = device}) {}

void StagedTensors::fetch(Set& set) {
  set.arrived_ = to_device_.run([pairs = set.pairs_] {
    for (const Set::Pair& pair : pairs) pair.on_device.copy_(pair.on_host, /*non_blocking=*/true);
  });
}

void StagedTensors::send_back(Set set) {
  set.left_ = to_host_.run([pairs = set.pairs_] {
    for (const Set::Pair& pair : pairs) {
      if (pair.changes) pair.on_host.copy_(pair.on_device, /*non_blocking=*/true);
    }
  });
  leaving_.push_back(std::move(set));
  // The memory of a set is freed when the caller's stream has waited for its copies.
  while (leaving_.size() > 1) {
    leaving_.front().left_.wait();
    leaving_.pop_front();
  }
}

void StagedTensors::finish() {
  for (const Set& set : leaving_) {
    set.left_.wait();
    set.left_.synchronize();
  }
  leaving_.clear();
}

}  // namespace fsdp::util
