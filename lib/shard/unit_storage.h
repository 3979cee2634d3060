#pragma once

// The memory of one unit: the shard that this rank keeps, and the buffers that exist only while the unit is
// in use.
//
// The module's parameters are views of the unsharded buffer for good. Freeing that buffer gives its memory
// back but not its identity, so what autograd saved of the parameters in forward is valid again once backward
// has gathered them. Gradients of the whole unit accumulate in one flat buffer, which is the input of the
// reduce-scatter.
//
// With a param_dtype other than fp32 this rank's part is cast straight to its place in the output of the
// all-gather, from where it is gathered: there is no second, low-precision shard. The output is the unsharded
// buffer where the layout gathers in place; else a communication buffer that exists until it has been copied
// there.

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "shard/buffer_pool.h"
#include "shard/gradient_buffer.h"
#include "shard/named_parameter.h"
#include "shard/parameter_source.h"
#include "shard/unit_layout.h"
#include "shard/unit_options.h"

namespace fsdp::shard {

/// Which of how many equal parts this rank keeps.
struct ShardPlace {
  int rank = 0;
  int world_size = 1;
};

class UnitStorage {
 public:
  /// Takes this rank's shard from the parameters' values, or from materialize.source for those on the meta
  /// device, and points the parameters at the (freed) unsharded buffer. Throws Error(kUsage) for parameters
  /// that are not fp32 and for those on the meta device when there is no source. Collective if the source is.
  UnitStorage(const std::vector<NamedParameter>& parameters, ShardPlace place, const StorageOptions& options,
              std::shared_ptr<BufferPool> pool, const Materialize& materialize = {});

  const UnitLayout& layout() const { return *layout_; }
  const ShardPlace& place() const { return place_; }
  const StorageOptions& options() const { return options_; }
  const std::vector<NamedParameter>& parameters() const { return parameters_; }
  bool has_trainable_parameters() const;

  /// [shard_numel] fp32 master weights of this rank; padding is zero.
  const at::Tensor& shard() const { return shard_; }
  /// [shard_numel] mean gradient over ranks, summed over micro-batches; fp32, or reduce_dtype with
  /// keep_low_precision_grads. Undefined until a backward pass has ended.
  const at::Tensor& shard_gradient() const { return shard_gradient_; }
  void clear_shard_gradient() { shard_gradient_.reset(); }
  /// Adds `mean`, [shard_numel] in reduce_dtype on the device of the parameters or of the gradient; may keep
  /// it.
  void add_to_shard_gradient(const at::Tensor& mean);

  /// Whether shards live in host memory and parameters on another device; likewise gradients.
  bool shard_is_offloaded() const { return shard_.device() != unsharded_.device(); }
  bool gradient_is_offloaded() const { return options_.move_grads_to_cpu && !unsharded_.is_cpu(); }
  /// Issues a copy of `mean` to pinned memory; it is there for the host when the host has waited.
  static at::Tensor copy_to_host(const at::Tensor& mean);

  /// Whether the parameters are views of the shard itself: a group of one in fp32 on the shard's device.
  bool shard_is_unsharded() const { return shard_is_unsharded_; }

  // The way of the parameters into the unsharded buffer; none of it where shard_is_unsharded(), where the
  // buffer is there always.

  /// [gathered_numel] the output of the all-gather; has memory from allocate_gathered() to free_gathered().
  const at::Tensor& gathered() const { return gathered_; }
  /// In `common` memory, if there is any, where each rank writes its own part alone.
  void allocate_gathered(c10::DataPtr common = {});
  /// This rank's part of the all-gather: `own`, which is the shard or a copy of it on the device of the
  /// parameters, or its place in the output.
  at::Tensor gather_input(const at::Tensor& own) const;
  /// Casts and copies `own` to where gather_input() is; nothing to do when it is `own`.
  void fill_gather_input(const at::Tensor& own);
  /// Copies what was gathered to the unsharded buffer; nothing to do where the layout gathers in place.
  void unpack();
  /// Frees the communication buffer, which only layouts have that do not gather in place.
  void free_gathered();
  bool gathered_is_allocated() const;

  /// [unsharded_numel] the parameters; has memory from unpack() to free_unsharded().
  const at::Tensor& unsharded() const { return unsharded_; }
  bool unsharded_is_allocated() const;
  void free_unsharded();

  /// Copies this rank's ranges of `whole` [unsharded_numel] to the shard.
  void take_shard_of(const at::Tensor& whole);
  /// `gathered` [gathered_numel] as [unsharded_numel]: itself, or a copy in the order of the parameters.
  at::Tensor unpacked(const at::Tensor& gathered) const;

  /// Points the parameters at `flat` [unsharded_numel] of any floating type, and back at unsharded().
  void show_parameters_in(const at::Tensor& flat);
  void show_parameters_in_unsharded() { show_parameters_in(unsharded_); }

  /// A buffer in which gradients accumulate; see GradientBuffer. A unit of one rank takes memory that
  /// may become its shard's gradient.
  void attach_gradients() { gradients_->attach(place_.world_size > 1 ? pool_.get() : nullptr); }
  at::Tensor detach_gradients() { return gradients_->detach(); }
  bool gradients_are_attached() const { return gradients_->is_attached(); }

  int64_t unsharded_bytes() const;  ///< of the unsharded buffer when it is allocated
  int64_t gathered_bytes() const;   ///< of the output of the all-gather
  int64_t gradient_bytes() const { return gradients_->nbytes(); }

 private:
  void fill_shard(const Materialize& materialize);
  void copy_unpacked(const at::Tensor& to, const at::Tensor& gathered) const;

  std::vector<NamedParameter> parameters_;
  std::unique_ptr<const UnitLayout> layout_;
  ShardPlace place_;
  StorageOptions options_;
  std::shared_ptr<BufferPool> pool_;
  bool shard_is_unsharded_ = false;
  at::Tensor shard_, shard_gradient_;
  at::Tensor unsharded_;
  at::Tensor gathered_;  ///< unsharded_ itself where the layout gathers in place
  at::Tensor
      own_part_;  ///< of gathered_; made while that has memory, which views of tensors without may need
  std::unique_ptr<GradientBuffer> gradients_;
};

}  // namespace fsdp::shard
