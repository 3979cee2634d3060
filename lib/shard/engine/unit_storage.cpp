#include "shard/engine/unit_storage.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "base/device/pinned_memory.h"
#include "base/tensor/storage.h"
#include "base/util/error.h"
#include "base/util/start_clock.h"
#include "model/kernels/cast.h"
#include "shard/engine/layout_views.h"

namespace fsdp::shard {
namespace {

/// The device on which the parameters are used.
at::Device device_of(const std::vector<NamedParameter>& parameters, const Materialize& materialize) {
  if (parameters.empty()) return materialize.device;
  at::Device device = parameters.front().tensor.device();
  return device.is_meta() ? materialize.device : device;
}

std::unique_ptr<UnitLayout> layout_of(util::Named<Layout> layout,
                                      const std::vector<NamedParameter>& parameters, int world_size) {
  std::vector<UnitLayout::Parameter> shapes;
  for (const NamedParameter& parameter : parameters) {
    const at::ScalarType type = parameter.tensor.scalar_type();
    if (type != at::kFloat && type != at::kByte) {
      fail(ErrorKind::kUsage, "parameter ", parameter.name, ": expected float32 parameters; found ",
           c10::toString(type), "; convert the model before fully_shard()");
    }
    shapes.push_back({parameter.name, parameter.tensor.sizes().vec(), parameter.shard_dimension});
  }
  return make_layout(layout, shapes, world_size);
}

std::string at_rest_text(const std::string& parameter) {
  return concat(
      "parameter ", parameter,
      ": expected a read in forward or backward of its module; found one at rest, when each rank has its shard only; open "
      "an fsdp::FullParameters(engine) around the read, take fsdp::full_state_dict(engine), or give an optimizer "
      "fsdp::parameters(engine)");
}

/// Returns memory for a shard, which is pinned where the host keeps it for another device.
at::Tensor empty_shard(int64_t numel, at::ScalarType type, at::Device device, bool on_host) {
  return on_host && !device.is_cpu() ? util::empty_pinned(numel, type, device)
                                     : at::empty({numel}, at::TensorOptions().dtype(type).device(device));
}

}  // namespace

UnitStorage::UnitStorage(const std::vector<NamedParameter>& parameters, ShardPlace place,
                         const StorageOptions& options, std::shared_ptr<BufferPool> pool,
                         const Materialize& materialize)
    : parameters_(parameters),
      layout_(layout_of(options.layout, parameters, place.world_size)),
      place_(place),
      options_(options),
      pool_(std::move(pool)) {
  at::NoGradGuard no_grad;
  at::Device device = device_of(parameters_, materialize);
  shard_ = empty_shard(layout_->shard_numel(), options_.param_storage, device, options_.cpu_offload);
  fill_shard(materialize);
  gradient_ =
      std::make_unique<ShardGradient>(options_.keep_low_precision_grads ? options_.reduce_dtype : at::kFloat);
  shard_is_unsharded_ = fsdp::shard::shard_is_unsharded(options_, *layout_, place_.groups());
  at::TensorOptions gathered = at::TensorOptions().dtype(options_.param_dtype).device(device);
  if (place_.slices > 1) {
    slice_shard_ =
        at::empty({layout_->shard_numel() * place_.slices}, gathered.dtype(options_.slice_dtype()));
  } else if (options_.keeps_low_precision_shard) {
    low_precision_ = std::make_shared<kernels::LowPrecisionCopy>(
        shard_, empty_shard(layout_->shard_numel(), options_.param_dtype, device, options_.cpu_offload));
  }
  unsharded_ =
      shard_is_unsharded_ ? source() : util::empty_without_memory(layout_->unsharded_numel(), gathered);
  gathered_ = layout_->gathers_in_place() ? unsharded_
                                          : util::empty_without_memory(layout_->gathered_numel(), gathered);
  const int64_t sent = source().numel();
  own_part_ = gathered_.narrow(0, place_.rank / place_.slices * sent, sent);
  show_parameters_in(unsharded_);
  if (!shard_is_unsharded_) {
    for (const NamedParameter& parameter : parameters_) {
      at_rest_.push_back(util::storage_that_throws(device, unsharded_bytes(), at_rest_text(parameter.name)));
    }
    free_unsharded();
  }
  if (!layout_->gathers_in_place()) util::free_storage(gathered_);
  gradients_ =
      std::make_unique<GradientBuffer>(parameters_, *layout_, options_.reduce_dtype, options_.sums_by_sample);
}

void UnitStorage::fill_shard(const Materialize& materialize) {
  int64_t filled = 0;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    filled += layout_->local_range(i, place_.rank).columns.numel();
  }
  if (filled < shard_.numel()) shard_.zero_();  // the padding
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& parameter = parameters_[i].tensor;
    if (!parameter.is_meta()) {
      auto local = local_piece(*layout_, i, place_.rank, parameter.detach().contiguous(), shard_);
      local.gathered.copy_(local.whole);
      continue;
    }
    require_source(materialize, parameters_[i].name);
    LocalRange range = layout_->local_range(i, place_.rank);
    at::Tensor own = shard_.narrow(0, range.shard_offset, range.columns.numel());
    const at::ScalarType read_type = parameter.scalar_type();
    const bool as_it_is = own.is_cpu() && own.scalar_type() == read_type;
    at::Tensor read = as_it_is ? own : at::empty(own.sizes(), at::TensorOptions(read_type));
    NamedParameter whole = parameters_[i];
    if (whole.part) whole.tensor = at::empty(whole.part->whole_shape, parameter.options());
    const util::InnerStartPhase phase("first weights");
    materialize.source->read(whole, parameters_[i].parts_of(range.columns), read);
    if (!as_it_is) own.copy_(read);
  }
}

void UnitStorage::show_parameters_in(const at::Tensor& flat) {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    util::point_at(parameters_[i].tensor, whole_view(*layout_, i, flat));
  }
}

void UnitStorage::allocate_gathered(c10::DataPtr common) {
  FSDP_CHECK(!shard_is_unsharded_);
  const auto kind = layout_->gathers_in_place() ? BufferKind::kParameters : BufferKind::kCommunication;
  const int64_t nbytes = gathered_bytes();
  util::restore_storage(gathered_,
                        common ? pool_->count(std::move(common), nbytes, kind) : pool_->acquire(nbytes, kind),
                        nbytes);
}

void UnitStorage::unpack() {
  if (layout_->gathers_in_place()) return;
  at::NoGradGuard no_grad;
  int64_t nbytes = unsharded_bytes();
  util::restore_storage(unsharded_, pool_->acquire(nbytes, BufferKind::kParameters), nbytes);
  copy_unpacked(unsharded_, gathered_);
}

void UnitStorage::copy_unpacked(const at::Tensor& to, const at::Tensor& gathered) const {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    for (auto& piece : pieces_of(*layout_, i, whole_view(*layout_, i, to), gathered)) {
      piece.whole.copy_(piece.gathered);
    }
  }
}

at::Tensor UnitStorage::unpacked(const at::Tensor& gathered) const {
  if (layout_->gathers_in_place()) return gathered;
  at::Tensor whole = at::empty({layout_->unsharded_numel()}, gathered.options());
  copy_unpacked(whole, gathered);
  return whole;
}

void UnitStorage::take_shard_of(const at::Tensor& whole) {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    auto local = local_piece(*layout_, i, place_.rank, whole_view(*layout_, i, whole), shard_);
    local.gathered.copy_(local.whole);
  }
}

void UnitStorage::free_unsharded() {
  FSDP_CHECK(!shard_is_unsharded_);
  for (size_t i = 0; i < parameters_.size(); ++i) util::set_storage(parameters_[i].tensor, at_rest_[i]);
  util::free_storage(unsharded_);
}

void UnitStorage::show_parameters() {
  if (shard_is_unsharded_) return;
  for (const NamedParameter& parameter : parameters_)
    util::set_storage(parameter.tensor, unsharded_.storage());
}

void UnitStorage::free_gathered() {
  FSDP_CHECK(!layout_->gathers_in_place());
  util::free_storage(gathered_);
}

bool UnitStorage::unsharded_is_allocated() const {
  return !shard_is_unsharded_ && !util::storage_is_free(unsharded_);
}

bool UnitStorage::gathered_is_allocated() const {
  return !layout_->gathers_in_place() && !util::storage_is_free(gathered_);
}

at::Tensor UnitStorage::own_slice_part() const {
  return slice_shard_.narrow(0, place_.rank % place_.slices * shard_.numel(), shard_.numel());
}

at::Tensor UnitStorage::gather_input(const at::Tensor& own) const {
  const bool as_it_is = own.scalar_type() == options_.param_dtype && place_.groups().shards > 1;
  return as_it_is ? own : own_part_;
}

void UnitStorage::fill_gather_input(const at::Tensor& own) {
  at::NoGradGuard no_grad;
  at::Tensor input = gather_input(own);
  if (input.unsafeGetTensorImpl() != own.unsafeGetTensorImpl()) kernels::cast(input, own);
}

void UnitStorage::attach_gradients() {
  // The buffer of a unit on one rank is not the pool's, because it may become the shard's gradient.
  const bool passes_on = place_.world_size > 1 || (gradients_stay_ && gradient_is_offloaded());
  gradients_->attach(passes_on ? pool_.get() : nullptr, gradients_stay_);
}

bool UnitStorage::has_trainable_parameters() const {
  return std::any_of(parameters_.begin(), parameters_.end(),
                     [](const NamedParameter& parameter) { return parameter.tensor.requires_grad(); });
}

int64_t UnitStorage::unsharded_bytes() const {
  return layout_->unsharded_numel() * static_cast<int64_t>(c10::elementSize(options_.param_dtype));
}

int64_t UnitStorage::gathered_bytes() const {
  return layout_->gathered_numel() * static_cast<int64_t>(c10::elementSize(options_.param_dtype));
}

}  // namespace fsdp::shard
