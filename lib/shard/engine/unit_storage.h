#pragma once

// The memory of one unit: the shard that this rank keeps, and the buffers that exist only while the unit is
// in use.
//
// While a unit is gathered, the module's parameters are views of the unsharded buffer. Freeing that buffer
// releases its memory but not its identity, so tensors that autograd saved in forward are valid again once
// backward has gathered the unit. At rest the parameters have storages without memory, and reading one is an
// error with a remedy. The gradients of the unit accumulate in one flat buffer, the input of the
// reduce-scatter.
//
// The shard has the type param_storage. Where param_dtype is that type, the all-gather sends the shard as it
// is. Otherwise the shard is cast directly into its place in the output of the all-gather, so there is no
// second, low-precision shard, unless keep_low_precision_shards asks for one, which is then sent in its
// place. The output is the unsharded buffer if the layout gathers in place, otherwise a
// communication buffer that exists until it has been copied there.
//
// With hybrid_optimizer = "global" the all-gather sends the slice's shard instead. This rank keeps it in
// addition to its own shard: the shards of the ranks of other slices that follow each other in the layout, in
// the lower of the two types. An all-gather between slices fills it.

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "model/kernels/low_precision_copy.h"
#include "shard/engine/buffer_pool.h"
#include "shard/engine/gradient_buffer.h"
#include "shard/engine/parameter_source.h"
#include "shard/engine/shard_gradient.h"
#include "shard/units/unit_layout.h"
#include "shard/units/unit_sizes.h"

namespace fsdp::shard {

/// This rank's place among the ranks over which the unit is cut.
struct ShardPlace {
  int rank = 0;
  int world_size = 1;
  int slices = 1;  ///< number of consecutive ranks whose shards make up the slice's shard

  GroupSizes groups() const { return {.shards = world_size / slices, .slices = slices}; }
};

class UnitStorage {
 public:
  /// Fills this rank's shard from the parameters' values, or from materialize.source for those on the meta
  /// device, and points the parameters at the (freed) unsharded buffer. Throws Error(kUsage) for parameters
  /// that are not fp32, and for parameters on the meta device without a source. Values are rounded to nearest
  /// where param_storage has 16 bits. Collective if the source is.
  UnitStorage(const std::vector<NamedParameter>& parameters, ShardPlace place, const StorageOptions& options,
              std::shared_ptr<BufferPool> pool, const Materialize& materialize = {});

  const UnitLayout& layout() const { return *layout_; }
  const ShardPlace& place() const { return place_; }
  const std::vector<NamedParameter>& parameters() const { return parameters_; }
  bool has_trainable_parameters() const;

  /// [shard_numel] weights of this rank in param_storage, by default fp32 master weights; padding is zero.
  const at::Tensor& shard() const { return shard_; }
  /// [shard_numel] mean gradient over ranks, summed over micro-batches; fp32, or reduce_dtype with
  /// keep_low_precision_grads. Undefined until a backward pass has ended.
  const at::Tensor& shard_gradient() const { return gradient_->sum(); }
  void clear_shard_gradient() { gradient_->clear(); }
  ShardGradient& gradient() { return *gradient_; }
  const ShardGradient& gradient() const { return *gradient_; }
  /// This rank's parts of the trainable parameters, as leaves of autograd; see ShardGradient.
  const std::vector<ShardLeaf>& leaves() {
    return gradient_->leaves_of(*layout_, place_.rank, shard_, parameters_);
  }

  /// Whether the shard (or its gradient) is in host memory and the parameters are on another device.
  bool shard_is_offloaded() const { return shard_.device() != unsharded_.device(); }
  bool gradient_is_offloaded() const { return options_.move_grads_to_cpu && !unsharded_.is_cpu(); }

  /// Whether the parameters are views of source() itself, as in a group of one that computes in its type on
  /// its device.
  bool shard_is_unsharded() const { return shard_is_unsharded_; }

  /// Whether the shards of all slices have to be gathered before source() can be.
  bool has_slices() const { return place_.slices > 1 && layout_->numel() > 0; }
  /// [shard_numel * slices] the slice's shard on this rank, on the device of the parameters.
  const at::Tensor& slice_shard() const { return slice_shard_; }
  /// This rank's part of the slice's shard.
  at::Tensor own_slice_part() const;
  /// The shard in param_dtype, beside the shard; null if none is kept.
  const std::shared_ptr<kernels::LowPrecisionCopy>& low_precision_shard() const { return low_precision_; }
  /// The tensor that the ranks of a slice gather: the slice's shard, the shard in param_dtype or the shard.
  const at::Tensor& source() const {
    return place_.slices > 1 ? slice_shard_ : low_precision_ ? low_precision_->values() : shard_;
  }
  /// Casts the shard to source() where that is old. Optimizers of torch::optim write leaves by their data(),
  /// which no version tells of.
  void update_source() {
    if (!low_precision_) return;
    gradient_->has_leaves() ? low_precision_->rewrite() : low_precision_->update();
  }

  // The steps by which parameters reach the unsharded buffer. Not used if shard_is_unsharded().

  /// [gathered_numel] the output of the all-gather; has memory from allocate_gathered() to free_gathered().
  const at::Tensor& gathered() const { return gathered_; }
  /// Gives gathered() memory: `common` if it is not null, which all ranks share and each rank writes only its
  /// own part of.
  void allocate_gathered(c10::DataPtr common = {});
  /// The input of the all-gather: `own`, which is source() or its copy on the device of the parameters, or
  /// this rank's place in the output.
  at::Tensor gather_input(const at::Tensor& own) const;
  /// Casts and copies `own` to gather_input(); no effect where the two are the same.
  void fill_gather_input(const at::Tensor& own);
  /// Copies gathered() to the unsharded buffer; no effect if the layout gathers in place.
  void unpack();
  /// Frees the communication buffer. Requires: a layout that does not gather in place.
  void free_gathered();
  bool gathered_is_allocated() const;

  /// [unsharded_numel] the parameters; has memory from unpack() to free_unsharded().
  const at::Tensor& unsharded() const { return unsharded_; }
  bool unsharded_is_allocated() const;
  /// Frees the unsharded buffer and hides the parameters.
  void free_unsharded();
  /// Makes the parameters views of the unsharded buffer, until free_unsharded(). Runs on the thread of the
  /// caller.
  void show_parameters();

  /// Copies this rank's ranges of `whole` [unsharded_numel] to the shard.
  void take_shard_of(const at::Tensor& whole);
  /// Returns `gathered` [gathered_numel] as [unsharded_numel]: the same tensor, or a copy in the order of the
  /// parameters.
  at::Tensor unpacked(const at::Tensor& gathered) const;

  /// Points the parameters at `flat` [unsharded_numel] of any floating type.
  void show_parameters_in(const at::Tensor& flat);

  /// Attaches a buffer in which gradients accumulate, see GradientBuffer.
  void attach_gradients();
  /// Makes gradients accumulate at the same addresses in every step, as graphs of a device need. A unit on
  /// one rank, whose buffer may become the shard's gradient, then keeps its memory between steps.
  void keep_gradients_in_place() { gradients_stay_ = true; }
  /// The buffer in which the gradients of the parameters accumulate.
  GradientBuffer& gradients() { return *gradients_; }
  const GradientBuffer& gradients() const { return *gradients_; }

  /// Bytes of source() where it is not the shard.
  int64_t source_bytes() const {
    return source().is_same(shard_) ? 0 : static_cast<int64_t>(source().nbytes());
  }
  int64_t unsharded_bytes() const;
  int64_t gathered_bytes() const;

 private:
  void fill_shard(const Materialize& materialize);
  void copy_unpacked(const at::Tensor& to, const at::Tensor& gathered) const;

  std::vector<NamedParameter> parameters_;
  std::vector<at::Storage> at_rest_;  ///< storage of each parameter at rest; empty if always gathered
  std::unique_ptr<const UnitLayout> layout_;
  ShardPlace place_;
  StorageOptions options_;
  std::shared_ptr<BufferPool> pool_;
  bool shard_is_unsharded_ = false, gradients_stay_ = false;
  at::Tensor shard_;
  std::unique_ptr<ShardGradient> gradient_;
  at::Tensor slice_shard_;  ///< undefined without slices
  std::shared_ptr<kernels::LowPrecisionCopy> low_precision_;
  at::Tensor unsharded_;
  at::Tensor gathered_;  ///< unsharded_ itself where the layout gathers in place
  at::Tensor own_part_;  ///< view of gathered_; a view can only be made while that has memory
  std::unique_ptr<GradientBuffer> gradients_;
};

}  // namespace fsdp::shard
