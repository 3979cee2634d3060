#include "shard/engine/unit.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/record_function.h>

#include "base/util/error.h"
#include "shard/engine/pending_work.h"

namespace fsdp::shard {

Unit::Unit(const UnitPlan& plan, const ProcessGroups& groups, const UnitParts& parts)
    : name_(plan.name),
      groups_(groups),
      options_(plan.options),
      trace_(parts.trace),
      offload_(parts.offload),
      storage_(plan.parameters, groups_.place(), options_.storage, parts.pool, parts.materialize),
      reduction_(make_reduction(*this)) {
  if (!storage_.shard_is_offloaded()) return;
  FSDP_CHECK(offload_ != nullptr, "unit ", name_, " has no way to the host");
  const bool sends_source = storage_.source().device() == storage_.shard().device();
  offload_->expect_shard(
      static_cast<int64_t>((sends_source ? storage_.source() : storage_.shard()).nbytes()));
}

Unit::~Unit() {
  // The communication stream may still refer to the storage.
  reset();
}

void Unit::note_buffer(bool allocated, BufferKind kind, int64_t bytes) {
  if (!trace_) return;
  // The gradient of a whole unit is the shard's own, not an unsharded buffer.
  if (kind == BufferKind::kGradients && !has_parts()) return;
  trace_->buffer(allocated, name_, kind_name(kind), bytes);
}

void Unit::start_slice_gather() {
  RECORD_USER_SCOPE("unit/gather between slices " + name_);
  finish_slice_gather();
  OffloadStreams::SentShard* place =
      storage_.shard_is_offloaded() ? &offload_->send(storage_.shard()) : nullptr;
  const at::Tensor own = place != nullptr ? place->values : storage_.shard();
  const util::Event own_is_there = place != nullptr ? place->there : util::Event();
  const at::Tensor part = storage_.own_slice_part();
  comm::Communicator& group = groups_.gathering_across();
  group.enqueue([own, own_is_there, part] {
    at::NoGradGuard no_grad;
    own_is_there.wait();
    at::Tensor(part).copy_(own);
  });
  if (place != nullptr) place->left = group.enqueue([] {});
  slice_gather_ = group.all_gather(storage_.slice_shard(), part, {.unit = name_, .pass = kBetweenSlices});
  traffic_ += {.all_gathers = 1, .all_gather_bytes = group.link_bytes_of_part(part)};
}

void Unit::finish_slice_gather() {
  if (const auto taken = std::exchange(slice_gather_, nullptr)) taken->wait();
}

void Unit::start_gather(const char* pass) {
  if (state_ != State::kSharded) return;
  storage_.update_source();
  if (storage_.shard_is_unsharded() || storage_.layout().numel() == 0) {
    state_ = State::kGathering;  // until the slice's shard is there
    return;
  }
  RECORD_USER_SCOPE("unit/gather " + name_);
  state_ = State::kGathering;
  comm::Communicator& group = groups_.gathering();
  const bool in_place = storage_.layout().gathers_in_place();
  const bool is_on_host = storage_.source().device() != storage_.unsharded().device();
  OffloadStreams::SentShard* place = is_on_host ? &offload_->send(storage_.source()) : nullptr;
  const at::Tensor own = place != nullptr ? place->values : storage_.source();
  const util::Event own_is_there = place != nullptr ? place->there : util::Event();
  if (auto between = std::exchange(slice_gather_, nullptr)) group.enqueue([between] { between->wait(); });
  const auto fill = [this, in_place, own, own_is_there](c10::DataPtr common) {
    storage_.allocate_gathered(std::move(common));
    note_buffer(true, in_place ? BufferKind::kParameters : BufferKind::kCommunication,
                storage_.gathered_bytes());
    own_is_there.wait();
    storage_.fill_gather_input(own);
  };
  const comm::CallSite site{.unit = name_, .pass = pass};
  comm::CommonMemory* common = is_cut() ? group.common_memory() : nullptr;
  gather_ = common != nullptr ? common->enqueue_with_memory(storage_.gathered_bytes(), site, fill)
                              : group.enqueue([fill] { fill({}); });
  if (is_cut()) {
    at::Tensor input = storage_.gather_input(own);
    gather_ = group.all_gather(storage_.gathered(), input, site);
    traffic_ += {.all_gathers = 1, .all_gather_bytes = group.link_bytes_of_part(input)};
  }
  if (place != nullptr) place->left = group.enqueue([] {});
  if (in_place) return;
  group.enqueue([this] {
    note_buffer(true, BufferKind::kParameters, storage_.unsharded_bytes());
    storage_.unpack();
  });
  unpacking_ = group.enqueue_release([this] {
    storage_.free_gathered();
    note_buffer(false, BufferKind::kCommunication, storage_.gathered_bytes());
  });
}

void Unit::finish_gather(const char* pass) {
  start_gather(pass);
  if (state_ == State::kGathering) wait_for_gather();
}

void Unit::wait_for_gather() {
  finish_slice_gather();
  wait_for(gather_);
  wait_for(unpacking_);
  storage_.show_parameters();
  state_ = State::kUnsharded;
}

void Unit::reshard() {
  if (state_ == State::kSharded) return;
  if (state_ == State::kGathering) wait_for_gather();
  if (storage_.unsharded_is_allocated()) {
    storage_.free_unsharded();
    note_buffer(false, BufferKind::kParameters, storage_.unsharded_bytes());
  }
  state_ = State::kSharded;
}

void Unit::attach_gradients() {
  if (storage_.gradients().is_attached() || !storage_.has_trainable_parameters()) return;
  at::NoGradGuard no_grad;
  storage_.attach_gradients();
  note_buffer(true, BufferKind::kGradients, storage_.gradients().nbytes());
}

void Unit::drop_gradients() {
  const bool has_buffer = storage_.gradients().is_attached();
  storage_.gradients().drop();
  if (has_buffer) note_buffer(false, BufferKind::kGradients, storage_.gradients().nbytes());
}

at::Tensor Unit::gather_whole(const at::Tensor& own) {
  FSDP_CHECK(state_ == State::kSharded, "unit ", name_, " is in use");
  FSDP_CHECK(own.numel() == storage_.layout().shard_numel(), "unit ", name_, ": not shaped like its shard");
  at::NoGradGuard no_grad;
  if (storage_.place().world_size == 1 && own.device() == storage_.unsharded().device()) return own;
  at::Tensor gathered = at::empty({storage_.layout().gathered_numel()},
                                  storage_.unsharded().options().dtype(own.scalar_type()));
  if (gathered.numel() == 0) return gathered;
  gathered.narrow(0, storage_.place().rank * own.numel(), own.numel()).copy_(own);
  groups_.gather(gathered, {.unit = name_});
  return storage_.unpacked(gathered);
}

void Unit::reset() {
  ignore_errors_of([this] { finish_slice_gather(); });
  for (auto* work : {&gather_, &unpacking_}) ignore_errors_of([work] { wait_for(*work); });
  reduction_->reset();
  drop_gradients();
  if (storage_.gathered_is_allocated()) {
    storage_.free_gathered();
    note_buffer(false, BufferKind::kCommunication, storage_.gathered_bytes());
  }
  if (storage_.unsharded_is_allocated()) {
    storage_.free_unsharded();
    note_buffer(false, BufferKind::kParameters, storage_.unsharded_bytes());
  }
  state_ = State::kSharded;
}

}  // namespace fsdp::shard
