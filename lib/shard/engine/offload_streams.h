#pragma once

// OffloadStreams: copies of shards and gradients between the device and host memory, where fsdp.cpu_offload
// keeps them, and the host thread that processes gradients when they have arrived.
//
// A device can copy in both directions at once, so each direction has a stream beside those of computation
// and of collectives. A copy to the device goes to memory that nothing else uses, so it waits for neither
// stream: while one shard is gathered, the next one is copied. The all-gather waits for its copy, and the
// copy after next waits for that all-gather, by events. The memory is allocated on the caller's stream at the
// first use and kept.
//
// One per engine of a device other than the CPU.

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/tensor/stream.h"
#include "comm/api/communicator.h"

namespace fsdp::shard {

class OffloadStreams {
 public:
  /// Number of shards on the device at a time: one being gathered, one being copied. Each place is as large
  /// as the largest shard; plan::plan_memory() counts the places.
  static constexpr int kPlaces = 2;

  explicit OffloadStreams(at::Device device);

  /// Announces a shard of this size. Requires: no send() before.
  void expect_shard(int64_t bytes);

  /// A shard on the device.
  struct SentShard {
    at::Tensor values;                 ///< [shard_numel] in the type of the shard
    util::Event there;                 ///< end of the copy; the reading stream must wait for it
    std::unique_ptr<comm::Work> left;  ///< last use of the values; the caller must set it
   private:
    friend class OffloadStreams;
    at::Tensor memory_;  ///< memory of the place, as bytes
  };

  /// Issues the copy of `shard`, which is in pinned memory and must not be written until the copy has ended.
  /// The result is valid until the send() after next.
  SentShard& send(const at::Tensor& shard);

  /// Runs `copy`, which copies to the host, on a stream that waits only for what `copy` itself waits for.
  util::Event receive(std::function<void()> copy);

  /// Issues, in the task of receive(), the copy of `gradient` [numel] to pinned memory. The host may read it
  /// after the event of receive(). Memory that nobody refers to is used again for a gradient of the same
  /// size.
  at::Tensor copy_to_host(const at::Tensor& gradient);

  /// Runs `task` on the host thread, in the order of the calls; libtorch's kernels may use several threads
  /// there. After a task has thrown, later ones do not run, and their events throw the same exception, until
  /// reset().
  util::Event then(std::function<void()> task);

  /// Waits until the thread is idle.
  void drain();
  /// Waits until the thread is idle, and forgets failures.
  void reset();

 private:
  at::Device device_;
  int64_t largest_shard_ = 0;  ///< size of the largest shard in bytes
  std::array<SentShard, kPlaces> places_;
  size_t next_ = 0;
  util::Stream to_device_, to_host_;
  std::vector<at::Tensor> on_host_;  ///< memory for gradients
  std::unique_ptr<util::Stream> thread_;
};

}  // namespace fsdp::shard
