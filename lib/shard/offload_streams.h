#pragma once

// OffloadStreams: the way of shards and gradients between the host's memory, where fsdp.cpu_offload keeps them, and
// the device that computes; and the thread of the host that goes on with gradients when they have arrived.
//
// A device copies in both directions at once, so each has a stream of its own beside those of computation and
// of collectives. A copy to the device goes to memory that nothing else uses, and so waits for neither: while
// one shard is gathered, the next is on its way. Who takes it waits for the copy, and the copy after next for
// who took it, by events. The memory is taken on the caller's stream when it is first needed and kept.
//
// One for each engine. On the CPU there is nothing to copy, only the thread.

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "comm/communicator.h"
#include "util/stream.h"

namespace fsdp::shard {

class OffloadStreams {
 public:
  /// Shards on the device at a time: one that is gathered, one that is copied. Each place takes as much
  /// memory as the largest shard; plan::plan_memory() counts it.
  static constexpr int kPlaces = 2;

  explicit OffloadStreams(at::Device device);

  /// A unit's shard has `numel` elements. Before the first send().
  void expect_shard(int64_t numel);

  /// A shard on the device.
  struct Place {
    at::Tensor values;                 ///< [shard_numel] fp32
    util::Event there;                 ///< the copy has ended; to be waited for on the stream that reads
    std::unique_ptr<comm::Work> left;  ///< the last use of the values; to be set when it has been issued
   private:
    friend class OffloadStreams;
    at::Tensor memory_;
  };

  /// Issues the copy of `shard`, fp32 in pinned memory, which must not be written before it has ended. The
  /// place is the caller's until the send() after next.
  Place& send(const at::Tensor& shard);

  /// Runs `copy`, which copies to the host, on a stream that waits for nothing but what `copy` waits for.
  util::Event receive(std::function<void()> copy);

  /// Runs `task` on the thread of the host, in the order of the calls; libtorch's kernels fork in it. When a
  /// task has thrown, later ones do not run and their events throw the same, until reset().
  util::Event then(std::function<void()> task);

  /// Waits until the thread has nothing to do.
  void drain();
  /// drain(), and a thread that knows of no failure.
  void reset();

 private:
  at::Device device_;
  int64_t largest_shard_ = 0;
  std::array<Place, kPlaces> places_;
  size_t next_ = 0;
  std::optional<util::Stream> to_device_, to_host_;
  std::unique_ptr<util::Stream> thread_;
};

}  // namespace fsdp::shard
