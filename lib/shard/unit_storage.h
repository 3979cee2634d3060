#pragma once

// The memory of one unit: the shard that this rank keeps, and the buffers that exist only while the unit is
// in use.
//
// The module's parameters are views of the unsharded buffer for good. Freeing that buffer gives its memory
// back but not its identity, so what autograd saved of the parameters in forward is valid again once backward
// has gathered them. Gradients of the whole unit accumulate in one flat buffer, which is the input of the
// reduce-scatter.

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "shard/flat_layout.h"
#include "shard/wrap_policy.h"

namespace fsdp::shard {

class UnitStorage {
 public:
  /// Takes this rank's shard from the parameters' values and points the parameters at the (freed) unsharded
  /// buffer.
  UnitStorage(const std::vector<NamedParameter>& parameters, comm::Communicator& communicator);

  const FlatLayout& layout() const { return layout_; }

  /// [shard_numel] fp32 master weights of this rank; padding is zero.
  const at::Tensor& shard() const { return shard_; }
  /// [shard_numel] mean gradient over ranks, summed over micro-batches; undefined until a backward pass has
  /// ended.
  const at::Tensor& shard_gradient() const { return shard_gradient_; }
  void set_shard_gradient(at::Tensor gradient) { shard_gradient_ = std::move(gradient); }

  /// [padded_numel] the gathered parameters; valid between allocate_unsharded() and free_unsharded(). In a
  /// group of one it is the shard itself, always valid, and neither allocated nor freed.
  const at::Tensor& unsharded() const { return unsharded_; }
  void allocate_unsharded();
  void free_unsharded();
  bool unsharded_is_allocated() const;

  /// [padded_numel] zeros that autograd accumulates into: the grad of every trainable parameter becomes a
  /// view of it.
  void attach_gradients();
  /// Takes the buffer away from the parameters; undefined when none was attached.
  at::Tensor detach_gradients();
  bool gradients_are_attached() const { return gradients_.defined(); }

  bool has_trainable_parameters() const;
  const std::vector<NamedParameter>& parameters() const { return parameters_; }

  int64_t unsharded_bytes() const;  ///< of the unsharded buffer when it is allocated
  int64_t live_bytes() const;       ///< unsharded parameter and gradient buffers that exist now

 private:
  std::vector<NamedParameter> parameters_;
  FlatLayout layout_;
  bool whole_ = false;  ///< a group of one: the shard is the unsharded buffer
  at::Tensor shard_, shard_gradient_;
  at::Tensor unsharded_, gradients_;
};

}  // namespace fsdp::shard
