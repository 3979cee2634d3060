#pragma once

// BufferPool: the memory of gathered parameters and of unreduced gradients, but for what the ranks of a host
// have in common (comm::CommonMemory), which it only counts.
//
// Units take a buffer when they are gathered and give it back when they are freed; the next unit gets the
// same memory, whatever its size. Every buffer has a place in one arena (util/free_ranges.h). While the pool
// does not know how long that must be, in the first step unless it was reserved, buffers for which it is too
// short have memory of their own; when none is in use the next time, it is made long enough. From then on the
// system is not asked for memory any more, but where communication falls further behind than ever before. It
// comes from the communicator, so that it can lie where collectives find it without a copy.
//
// Thread-safe: collectives take and give back on the communication stream.

#include <ATen/core/Tensor.h>

#include <memory>
#include <mutex>
#include <vector>

#include "comm/communicator.h"
#include "util/free_ranges.h"

namespace fsdp::shard {

enum class BufferKind { kParameters, kGradients, kCommunication };

/// "parameters", "gradients" or "communication", as in a trace.
const char* kind_name(BufferKind kind);

/// Bytes that units have asked for, without what blocks have beyond that.
struct BufferAccount {
  int64_t live_parameters = 0;  ///< gathered parameters that exist now
  int64_t live_gradients = 0;   ///< gradients that are accumulated or being reduced now
  /// Outputs of all-gathers that are to be copied to the parameters; see UnitLayout::gathers_in_place().
  int64_t live_communication = 0;
  int64_t peak_parameters = 0;
  int64_t peak_gradients = 0;
  int64_t peak_communication = 0;
  int64_t peak = 0;  ///< the most of all together at any time

  int64_t live() const { return live_parameters + live_gradients + live_communication; }
  int64_t& live_of(BufferKind kind) {
    if (kind == BufferKind::kParameters) return live_parameters;
    return kind == BufferKind::kGradients ? live_gradients : live_communication;
  }
};

class BufferPool : public std::enable_shared_from_this<BufferPool> {
 public:
  explicit BufferPool(std::shared_ptr<comm::Communicator> communicator)
      : communicator_(std::move(communicator)) {}

  /// Memory of at least `nbytes`, uninitialised, which goes back to the pool with the pointer.
  c10::DataPtr acquire(int64_t nbytes, BufferKind kind);

  /// Counts memory that was not the pool's until the pointer goes.
  c10::DataPtr count(c10::DataPtr memory, int64_t nbytes, BufferKind kind);

  /// A flat tensor in memory of the pool, uninitialised.
  at::Tensor acquire_tensor(int64_t numel, at::ScalarType dtype, BufferKind kind);

  /// Makes the arena so when the first buffer is asked for. A plan knows it (plan::buffer_shapes()).
  void reserve(const util::Arena::Shape& shape);

  BufferAccount account() const;
  /// Peaks count from here.
  void reset_peaks();

  /// Memory of the arena and of buffers outside of it.
  int64_t held_bytes() const;
  /// Gives the arena back, to be made again with the next buffer; no effect while one is in use.
  void trim();

 private:
  struct Lease;
  struct Counted;
  void release(Lease& lease);
  void grow_arena();
  void note_peaks();

  std::shared_ptr<comm::Communicator> communicator_;
  mutable std::mutex mutex_;
  util::Arena places_;
  at::Tensor arena_;
  int64_t outside_bytes_ = 0;
  BufferAccount account_;
};

}  // namespace fsdp::shard
