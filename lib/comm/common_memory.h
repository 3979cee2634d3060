#pragma once

#include <c10/core/Allocator.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "comm/communicator.h"

namespace fsdp::comm {

/// Memory that all ranks of a group share, into which an all-gather moves only each rank's own part. Some
/// communicators have it (Communicator::common_memory()): shared memory of one host, threads as ranks, and
/// their decorators.
class CommonMemory {
 public:
  virtual ~CommonMemory() = default;

  /// Runs `task` as Communicator::enqueue() does, with `nbytes` of memory at the same place for all ranks of
  /// the group, or with null on all ranks if the system has no memory left to share. Collective. The memory is
  /// reused once every rank has released its pointer. An all-gather whose output begins there writes only this
  /// rank's part, unless that is in its place already; ranks must not write anywhere else in the memory.
  virtual std::unique_ptr<Work> enqueue_with_memory(int64_t nbytes, const CallSite& site,
                                                    std::function<void(c10::DataPtr)> task) = 0;
  /// Sets how much memory is taken from the system, in one piece, at the first request. Each request needs
  /// util::Arena::kAlignment bytes more than it asks for. Not collective.
  virtual void reserve(int64_t nbytes) = 0;
};

}  // namespace fsdp::comm
