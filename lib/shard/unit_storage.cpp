#include "shard/unit_storage.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include "util/error.h"
#include "util/storage.h"

namespace fsdp::shard {
namespace {

FlatLayout layout_of(const std::vector<NamedParameter>& parameters, int world_size) {
  std::vector<FlatLayout::Parameter> shapes;
  for (const NamedParameter& parameter : parameters) {
    shapes.push_back({parameter.name, parameter.tensor.sizes().vec()});
  }
  return FlatLayout(shapes, world_size);
}

at::Tensor view_of(const at::Tensor& flat, const ParameterPlace& place) {
  return flat.narrow(0, place.offset, place.numel).view(place.shape);
}

}  // namespace

UnitStorage::UnitStorage(const std::vector<NamedParameter>& parameters, comm::Communicator& communicator)
    : parameters_(parameters), layout_(layout_of(parameters, communicator.world_size())) {
  at::NoGradGuard no_grad;
  for (const NamedParameter& parameter : parameters_) {
    if (parameter.tensor.scalar_type() != at::kFloat) {
      util::fail(util::ErrorKind::kUsage, "parameter ", parameter.name,
                 ": expected float32 master weights; found ", c10::toString(parameter.tensor.scalar_type()),
                 "; convert the model before fully_shard()");
    }
  }
  shard_ = at::zeros({layout_.shard_numel()}, at::kFloat);
  whole_ = communicator.world_size() == 1;
  unsharded_ = whole_ ? shard_ : communicator.allocate(layout_.padded_numel(), at::kFloat);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor parameter = parameters_[i].tensor;
    LocalRange range = layout_.local_range(i, communicator.rank());
    int64_t length = range.end - range.begin;
    if (length > 0) {
      shard_.narrow(0, range.shard_offset, length)
          .copy_(parameter.detach().contiguous().flatten().narrow(0, range.begin, length));
    }
    parameter.set_data(view_of(unsharded_, layout_.parameters()[i]));
  }
  if (!whole_) util::free_storage(unsharded_);
}

void UnitStorage::allocate_unsharded() {
  FSDP_CHECK(!whole_);
  util::restore_storage(unsharded_, unsharded_bytes());
}

void UnitStorage::free_unsharded() {
  FSDP_CHECK(!whole_);
  util::free_storage(unsharded_);
}

bool UnitStorage::unsharded_is_allocated() const { return !whole_ && !util::storage_is_free(unsharded_); }

void UnitStorage::attach_gradients() {
  FSDP_CHECK(!gradients_.defined());
  gradients_ = at::zeros({layout_.padded_numel()}, at::kFloat);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor parameter = parameters_[i].tensor;
    if (parameter.requires_grad()) parameter.mutable_grad() = view_of(gradients_, layout_.parameters()[i]);
  }
}

at::Tensor UnitStorage::detach_gradients() {
  if (!gradients_.defined()) return {};
  for (size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor parameter = parameters_[i].tensor;
    if (!parameter.requires_grad()) continue;
    const at::Tensor& grad = parameter.grad();
    const ParameterPlace& place = layout_.parameters()[i];
    // Autograd adds in place into a defined grad; should anything have replaced it, the sum must not be lost.
    at::Tensor expected = view_of(gradients_, place);
    if (grad.defined() && grad.data_ptr() != expected.data_ptr()) expected.copy_(grad);
    parameter.mutable_grad() = at::Tensor();
  }
  return std::exchange(gradients_, at::Tensor());
}

bool UnitStorage::has_trainable_parameters() const {
  for (const NamedParameter& parameter : parameters_) {
    if (parameter.tensor.requires_grad()) return true;
  }
  return false;
}

int64_t UnitStorage::unsharded_bytes() const {
  return layout_.padded_numel() * static_cast<int64_t>(sizeof(float));
}

int64_t UnitStorage::live_bytes() const {
  return (unsharded_is_allocated() ? unsharded_bytes() : 0) + (gradients_.defined() ? unsharded_bytes() : 0);
}

}  // namespace fsdp::shard
