#pragma once

// The slices of the training state that a checkpoint holds for this rank. They are views, so that saving
// copies nothing and loading fills the live tensors. HostCopies copies them, so that training can continue
// while they are written.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "shard/engine/tensor_slice.h"
#include "state/checkpoint/copy_beside.h"
#include "state/optim/optimizer.h"

namespace fsdp::shard {
class Engine;
struct Segment;
}  // namespace fsdp::shard

namespace fsdp::checkpoint {

/// The use of the slices of a state.
enum class SlicePurpose {
  kSave,  ///< ranks that hold the same elements get disjoint parts, so that each element is written once
  kLoad,  ///< every rank gets all elements that it holds
};

/// This one of the copies of a state that ranks outside the engine have too, which divide it among
/// themselves.
struct Copies {
  int64_t number = 0, count = 1;
};

/// The slice of a tensor that is cut like the shard of the segment's unit. `view`: this rank's part,
/// [segment.numel()].
shard::TensorSlice slice_of(const shard::Engine& engine, const shard::Segment& segment,
                            const std::string& prefix, const optim::StateView& view, SlicePurpose purpose,
                            const Copies& copies = {});

/// The slices "model/<name>" of every parameter and buffer (rank 0 saves buffers), and
/// "optimizer/<state>/<name>" of every trainable parameter that has the state. The optimizer must have been
/// made from optim::flat_parameters() of the same engine.
std::vector<shard::TensorSlice> state_slices(shard::Engine& engine, const optim::Optimizer& optimizer,
                                             SlicePurpose purpose);

bool in_host_memory(const std::vector<shard::TensorSlice>& slices);

/// A buffer in host memory for copies of all slices, allocated once and reused by every save.
class HostCopies {
 public:
  /// Allocates the buffer for slices of these sizes and touches its memory, so that no save has to. take()
  /// and begin() do so themselves if the slices differ from the previous slices. `beside`: for begin().
  void prepare(const std::vector<shard::TensorSlice>& slices, bool beside = false);

  /// Copies the slices' data from any device. The result is in the buffer and valid until the next call.
  const std::vector<shard::TensorSlice>& take(const std::vector<shard::TensorSlice>& slices);

  /// Like take(), but the result is valid only after finish(), and the copies are made beside the caller's
  /// work (copy_beside.h). The slices must not change before, except those with names in `changing`, which
  /// are copied at once. `before`: as for CopyBeside::begin().
  const std::vector<shard::TensorSlice>& begin(const std::vector<shard::TensorSlice>& slices,
                                               const std::set<std::string>& changing = {},
                                               std::function<void()> before = {});
  /// Waits for the copies that begin() has begun, if any.
  void finish();

  /// Copies the buffer back to the slices that were taken.
  void write_back(const std::vector<shard::TensorSlice>& slices) const;

  int64_t bytes() const { return buffer_.defined() ? buffer_.numel() : 0; }
  /// The buffer with all copies, uint8.
  const at::Tensor& buffer() const { return buffer_; }

 private:
  bool fits(const std::vector<shard::TensorSlice>& slices) const;

  at::Tensor buffer_;  ///< uint8
  std::vector<shard::TensorSlice> copies_;
  std::unique_ptr<CopyBeside> beside_;  ///< made by begin()
};

}  // namespace fsdp::checkpoint
