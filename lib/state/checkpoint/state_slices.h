#pragma once

// The slices of the training state that a checkpoint holds for this rank: views, so that saving copies
// nothing and loading fills the live tensors; and copies of them, so that training can go on while they are
// written.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "shard/engine/engine.h"
#include "shard/engine/tensor_slice.h"
#include "state/optim/optimizer.h"

namespace fsdp::checkpoint {

/// What the slices of a state are used for.
enum class SlicePurpose {
  kSave,  ///< ranks that hold the same elements give disjoint parts, so that each element is written once
  kLoad,  ///< every rank gets all that it holds
};

/// "model/<name>" of every parameter and buffer (rank 0 saves the latter) and "optimizer/<state>/<name>" of
/// every trainable one that has the state. The optimizer must have been made from optim::flat_parameters() of the same engine.
std::vector<shard::TensorSlice> state_slices(const shard::Engine& engine, const optim::Optimizer& optimizer,
                                             SlicePurpose purpose);

bool in_host_memory(const std::vector<shard::TensorSlice>& slices);

/// One buffer in host memory as large as the slices together, allocated once and reused by every save.
class HostCopies {
 public:
  /// Allocates the buffer for slices like these and touches its memory, so that no save has to. take() does
  /// so itself when the slices differ from the previous ones.
  void prepare(const std::vector<shard::TensorSlice>& slices);

  /// Copies the slices' data from any device. The result lies in the buffer and is valid until the next call.
  const std::vector<shard::TensorSlice>& take(const std::vector<shard::TensorSlice>& slices);

  /// Copies the buffer back to the slices that were taken.
  void write_back(const std::vector<shard::TensorSlice>& slices) const;

  int64_t bytes() const { return buffer_.defined() ? buffer_.numel() : 0; }
  /// All copies, uint8.
  const at::Tensor& buffer() const { return buffer_; }

 private:
  bool fits(const std::vector<shard::TensorSlice>& slices) const;

  at::Tensor buffer_;  ///< uint8
  std::vector<shard::TensorSlice> copies_;
};

}  // namespace fsdp::checkpoint
