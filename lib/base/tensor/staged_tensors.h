#pragma once

// StagedTensors: tensors in host memory that a device reads and changes, set by set.
//
//   StagedTensors::Set set = staged.make_set();
//   at::Tensor x = set.add(on_host, /*changes=*/true);   // its memory on the device
//   staged.fetch(set);                                   // copies to the device
//   ... fetch the next set ...
//   staged.wait_for(set);
//   x.add_(1);
//   staged.send_back(std::move(set));                    // copies what has changed to the host
//   staged.finish();                                     // the host may read
//
// Each direction is a stream beside the caller's, so that the copies of the next set and of the last one run
// beside the work on this one. Memory on the device is allocated and freed on the caller's stream, for three
// sets at a time. Used by one thread.

#include <ATen/core/Tensor.h>

#include <deque>
#include <vector>

#include "base/tensor/stream.h"

namespace fsdp::util {

class StagedTensors {
 public:
  /// The sets that have memory on the device at once: one that comes, one in use and one that goes.
  static constexpr int kSets = 3;

  explicit StagedTensors(at::Device device);

  class Set {
   public:
    /// Returns a tensor on the device for `on_host`, which is contiguous; `on_host` itself if it is there, or
    /// undefined. `changes`: whether send_back() copies it to the host.
    at::Tensor add(const at::Tensor& on_host, bool changes);

   private:
    friend class StagedTensors;
    explicit Set(at::Device device) : device_(device) {}
    struct Pair {
      at::Tensor on_host, on_device;
      bool changes;
    };
    at::Device device_;
    std::vector<Pair> pairs_;
    Event arrived_, left_;
  };

  Set make_set() const { return Set(device_); }
  void fetch(Set& set);
  /// Makes the caller's stream wait until the set is on the device.
  void wait_for(const Set& set) { set.arrived_.wait(); }
  void send_back(Set set);
  /// Waits until all sets are in host memory.
  void finish();

 private:
  at::Device device_;
  std::deque<Set> leaving_;
  Stream to_device_, to_host_;
};

}  // namespace fsdp::util
