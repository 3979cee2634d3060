#pragma once

// Regions of autocast, libtorch's at::autocast and Python's torch.autocast: in a region, products of fp32
// tensors are computed in 16 bits, and sums and the like in fp32, by casts that libtorch inserts. Regions
// belong to threads.
//
// Where autograd records, libtorch keeps the cast copy of a weight until at::autocast::clear_cache(), and uses it
// wherever a region sees that weight again, also if the weight has changed since. NoAutocastCache prevents this
// for weights whose values come and go.

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <optional>
#include <vector>

namespace fsdp::util {

/// The type in which this thread's region computes products of tensors on the device; nullopt: no region.
std::optional<at::ScalarType> autocast_type(at::Device device);

/// The thread's regions: of the CPU, and of one other device. Only AutocastScope reads it.
class AutocastState {
 public:
  explicit AutocastState(at::Device device);

 private:
  friend class AutocastScope;
  struct Region {
    at::DeviceType device;
    bool enabled;
    at::ScalarType type;

    static Region current(at::DeviceType device);
    void enter() const;
  };
  std::vector<Region> regions_;
};

/// Within its scope, libtorch neither uses nor makes kept copies in this thread.
class NoAutocastCache {
 public:
  NoAutocastCache();
  ~NoAutocastCache();
  NoAutocastCache(const NoAutocastCache&) = delete;
  NoAutocastCache& operator=(const NoAutocastCache&) = delete;

 private:
  bool before_;
};

/// Within its scope, the thread is in the regions of `state`, without kept copies.
class AutocastScope {
 public:
  explicit AutocastScope(const AutocastState& state);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  NoAutocastCache no_cache_;
  std::vector<AutocastState::Region> before_;
};

/// Within its scope, the thread is in no region.
class NoAutocast {
  c10::impl::ExcludeDispatchKeyGuard guard_{c10::autocast_dispatch_keyset};
};

}  // namespace fsdp::util
