#pragma once

// BufferPool: the memory of gathered parameters and of unreduced gradients.
//
// Units take a buffer when they are gathered and give it back when they are freed; the next unit gets the
// same memory. So a run holds as many buffers as are ever in use together, each as large as a unit, and the
// system is not asked for memory in every step. The memory comes from the communicator, so that it can lie
// where collectives find it without a copy.
//
// Thread-safe: collectives take and give back on the communication stream.

#include <ATen/core/Tensor.h>

#include <memory>
#include <mutex>
#include <vector>

#include "comm/communicator.h"

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

  /// A flat tensor in such memory, uninitialised.
  at::Tensor acquire_tensor(int64_t numel, at::ScalarType dtype, BufferKind kind);

  BufferAccount account() const;
  /// Peaks count from here.
  void reset_peaks();

  /// Memory of all blocks, in use or waiting to be.
  int64_t held_bytes() const;
  /// Gives back what is not in use.
  void trim();

 private:
  struct Lease;
  void release(Lease& lease);
  at::Tensor take_block(int64_t nbytes);
  void note_peaks();

  std::shared_ptr<comm::Communicator> communicator_;
  mutable std::mutex mutex_;
  std::vector<at::Tensor> free_blocks_;
  int64_t held_bytes_ = 0;
  BufferAccount account_;
};

}  // namespace fsdp::shard
