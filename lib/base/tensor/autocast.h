#pragma once

// Regions of libtorch's at::autocast and Python's torch.autocast, in which libtorch inserts casts so that
// products of fp32 tensors are computed in 16 bits, and sums and the like in fp32. Regions belong to threads.
//
// While autograd records, libtorch keeps the cast copy of a weight until at::autocast::clear_cache(), and
// uses the copy wherever a region sees that weight again, even if the weight has changed since.
// NoAutocastCache prevents this for weights that are gathered and freed repeatedly.

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <optional>
#include <vector>

namespace fsdp::util {

/// Returns the type of products on the device in this thread's region; nullopt: no region.
std::optional<at::ScalarType> autocast_type(at::Device device);

/// A copy of the thread's regions: the CPU's and that of one other device. Only AutocastScope reads it.
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

/// During the object's lifetime, libtorch neither uses nor keeps cast copies in this thread.
class NoAutocastCache {
 public:
  NoAutocastCache();
  ~NoAutocastCache();
  NoAutocastCache(const NoAutocastCache&) = delete;
  NoAutocastCache& operator=(const NoAutocastCache&) = delete;

 private:
  bool before_;
};

/// During the object's lifetime, the thread is in the regions of `state`, without cached copies.
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

/// During the object's lifetime, the thread is in no region.
class NoAutocast {
  c10::impl::ExcludeDispatchKeyGuard guard_{c10::autocast_dispatch_keyset};
};

}  // namespace fsdp::util
