#include "shard/unit_storage.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include "util/error.h"
#include "util/storage.h"

namespace fsdp::shard {
namespace {

FlatLayout layout_of(const std::vector<NamedParameter>& parameters, int world_size) {
  std::vector<FlatLayout::Parameter> shapes;
  for (const NamedParameter& parameter : parameters) {
    if (parameter.tensor.scalar_type() != at::kFloat) {
      util::fail(util::ErrorKind::kUsage, "parameter ", parameter.name,
                 ": expected float32 master weights; found ", c10::toString(parameter.tensor.scalar_type()),
                 "; convert the model before fully_shard()");
    }
    shapes.push_back({parameter.name, parameter.tensor.sizes().vec()});
  }
  return FlatLayout(shapes, world_size);
}

/// fp32 memory where shards and their gradients live: pinned when the host keeps them for another device.
at::TensorOptions home(at::Device device, bool on_host) {
  bool pinned = on_host && !device.is_cpu();
  return at::TensorOptions()
      .dtype(at::kFloat)
      .device(on_host ? at::Device(at::kCPU) : device)
      .pinned_memory(pinned);
}

}  // namespace

UnitStorage::UnitStorage(const std::vector<NamedParameter>& parameters, ShardPlace place,
                         const StorageOptions& options, std::shared_ptr<BufferPool> pool)
    : parameters_(parameters),
      layout_(layout_of(parameters, place.world_size)),
      place_(place),
      options_(options),
      pool_(std::move(pool)) {
  at::NoGradGuard no_grad;
  at::Device device = parameters_.empty() ? at::Device(at::kCPU) : parameters_.front().tensor.device();
  shard_ = at::zeros({layout_.shard_numel()}, home(device, options_.cpu_offload));
  for (size_t i = 0; i < parameters_.size(); ++i) {
    LocalRange range = layout_.local_range(i, place_.rank);
    int64_t length = range.end - range.begin;
    if (length == 0) continue;
    shard_.narrow(0, range.shard_offset, length)
        .copy_(parameters_[i].tensor.detach().contiguous().flatten().narrow(0, range.begin, length));
  }
  shard_is_unsharded_ = place_.world_size == 1 && options_.param_dtype == at::kFloat && !options_.cpu_offload;
  if (shard_is_unsharded_) {
    unsharded_ = shard_;
  } else {
    unsharded_ =
        at::empty({layout_.padded_numel()}, at::TensorOptions().dtype(options_.param_dtype).device(device));
  }
  own_part_ = unsharded_.narrow(0, place_.rank * layout_.shard_numel(), layout_.shard_numel());
  show_parameters_in_unsharded();
  if (!shard_is_unsharded_) util::free_storage(unsharded_);
  gradients_ = std::make_unique<GradientBuffer>(parameters_, layout_, options_.reduce_dtype);
}

void UnitStorage::show_parameters_in(const at::Tensor& flat) {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const ParameterPlace& place = layout_.parameters()[i];
    parameters_[i].tensor.set_data(flat.narrow(0, place.offset, place.numel).view(place.shape));
  }
}

void UnitStorage::allocate_unsharded() {
  FSDP_CHECK(!shard_is_unsharded_);
  int64_t nbytes = unsharded_bytes();
  util::restore_storage(unsharded_, pool_->acquire(nbytes, BufferKind::kParameters), nbytes);
}

void UnitStorage::free_unsharded() {
  FSDP_CHECK(!shard_is_unsharded_);
  util::free_storage(unsharded_);
}

bool UnitStorage::unsharded_is_allocated() const {
  return !shard_is_unsharded_ && !util::storage_is_free(unsharded_);
}

at::Tensor UnitStorage::gather_input() const {
  bool as_it_is = options_.param_dtype == at::kFloat && !options_.cpu_offload && place_.world_size > 1;
  return as_it_is ? shard_ : own_part_;
}

void UnitStorage::fill_gather_input() {
  at::NoGradGuard no_grad;
  at::Tensor input = gather_input();
  if (input.unsafeGetTensorImpl() != shard_.unsafeGetTensorImpl()) {
    input.copy_(shard_, /*non_blocking=*/true);
  }
}

void UnitStorage::add_to_shard_gradient(const at::Tensor& mean) {
  if (shard_gradient_.defined()) {
    shard_gradient_.add_(mean.to(shard_gradient_.device()));
    return;
  }
  at::ScalarType dtype = options_.keep_low_precision_grads ? options_.reduce_dtype : at::kFloat;
  if (options_.move_grads_to_cpu) {
    shard_gradient_ = at::empty_like(mean, home(mean.device(), true).dtype(dtype));
    shard_gradient_.copy_(mean);
  } else {
    shard_gradient_ = mean.to(dtype);
  }
}

bool UnitStorage::has_trainable_parameters() const {
  for (const NamedParameter& parameter : parameters_) {
    if (parameter.tensor.requires_grad()) return true;
  }
  return false;
}

int64_t UnitStorage::unsharded_bytes() const {
  return layout_.padded_numel() * static_cast<int64_t>(c10::elementSize(options_.param_dtype));
}

}  // namespace fsdp::shard
