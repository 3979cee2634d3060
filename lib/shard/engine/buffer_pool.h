#pragma once

// BufferPool: the memory of gathered parameters and unreduced gradients. Memory that the ranks of a host
// share (comm::CommonMemory) is only counted here.
//
// Units take a buffer when they are gathered and give it back when they are freed. The next unit gets the
// same memory, whatever its size. Every buffer has a place in one arena (base/util/free_ranges.h). Until the
// pool knows how long the arena must be (in the first step, unless it was reserved), buffers that do not fit
// have memory of their own. When no buffer is in use, the arena is made long enough. From then on the pool
// asks the system for no more memory, unless communication falls further behind than before. The memory comes
// from the communicator, which can allocate it where collectives need no copy.
//
// Thread-safe: collectives take and give back buffers on the communication stream.

#include <ATen/core/Tensor.h>

#include <memory>
#include <mutex>

#include "base/util/free_ranges.h"
#include "comm/api/communicator.h"

namespace fsdp::shard {

enum class BufferKind { kParameters, kGradients, kCommunication };

/// The kind's name in a trace: "parameters", "gradients" or "communication".
const char* kind_name(BufferKind kind);

/// Bytes that units have asked for, without padding.
struct BufferAccount {
  int64_t live_parameters = 0;     ///< gathered parameters
  int64_t live_gradients = 0;      ///< gradients that are being accumulated or reduced
  int64_t live_communication = 0;  ///< separate outputs of all-gathers, see UnitLayout::gathers_in_place()
  int64_t peak_parameters = 0;
  int64_t peak_gradients = 0;
  int64_t peak_communication = 0;
  int64_t peak = 0;  ///< peak of the sum

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
  /// On a device the caller's stream may still use the arena; it is released once that stream has come so
  /// far.
  ~BufferPool();

  /// Returns uninitialised memory of at least `nbytes`, which the pool gets back when the pointer is
  /// destroyed.
  c10::DataPtr acquire(int64_t nbytes, BufferKind kind);

  /// Counts memory from elsewhere until the returned pointer is destroyed.
  c10::DataPtr count(c10::DataPtr memory, int64_t nbytes, BufferKind kind);

  /// Returns an uninitialised flat tensor in memory of the pool.
  at::Tensor acquire_tensor(int64_t numel, at::ScalarType dtype, BufferKind kind);

  /// Gives the arena this shape with the first buffer. plan::buffer_shapes() computes it.
  void reserve(const util::Arena::Shape& shape);

  BufferAccount account() const;
  /// Restarts the peaks at the live bytes.
  void reset_peaks();

  /// Memory of the arena and of the buffers outside it.
  int64_t held_bytes() const;

 private:
  struct Lease;
  c10::DataPtr lend(std::unique_ptr<Lease> lease, void* data, at::Device device);
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
