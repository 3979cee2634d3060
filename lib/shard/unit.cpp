#include "shard/unit.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

#include "util/error.h"

namespace fsdp::shard {

Unit::Unit(const UnitPlan& plan, const ProcessGroups& groups, std::shared_ptr<comm::Trace> trace)
    : name_(plan.name),
      groups_(groups),
      trace_(std::move(trace)),
      storage_(plan.parameters, *groups_.shard) {}

void Unit::note_buffer(bool allocated, const char* kind) {
  if (trace_) trace_->buffer(allocated, name_, kind, storage_.unsharded_bytes());
}

void Unit::start_gather(const char* pass) {
  if (state_ != State::kSharded) return;
  if (!is_cut()) {
    state_ = State::kUnsharded;  // the shard is the whole unit, and the parameters are views of it
    return;
  }
  storage_.allocate_unsharded();
  note_buffer(true, "parameters");
  state_ = State::kGathering;
  gather_ = groups_.shard->all_gather(storage_.unsharded(), storage_.shard(), {.unit = name_, .pass = pass});
}

void Unit::finish_gather(const char* pass) {
  start_gather(pass);
  if (state_ == State::kGathering) wait_for_gather();
}

void Unit::wait_for_gather() {
  // Taken first: a wait() that throws must not be repeated.
  auto work = std::move(gather_);
  if (work) work->wait();
  state_ = State::kUnsharded;
}

void Unit::reshard() {
  if (state_ == State::kSharded) return;
  if (state_ == State::kGathering) wait_for_gather();
  if (is_cut()) {
    storage_.free_unsharded();
    note_buffer(false, "parameters");
  }
  state_ = State::kSharded;
}

void Unit::attach_gradients() {
  if (storage_.gradients_are_attached() || !storage_.has_trainable_parameters()) return;
  at::NoGradGuard no_grad;
  storage_.attach_gradients();
  note_buffer(true, "gradients");
}

void Unit::start_reduction() {
  at::NoGradGuard no_grad;
  FSDP_CHECK(!reduction_input_.defined(), "unit ", name_);
  reduction_input_ = storage_.detach_gradients();
  FSDP_CHECK(reduction_input_.defined(), "unit ", name_);
  comm::CallSite site{.unit = name_, .pass = "backward"};
  if (is_cut()) {
    reduction_output_ = at::empty_like(storage_.shard());
    reduction_ = groups_.shard->reduce_scatter(reduction_output_, reduction_input_, site);
  } else {
    reduction_output_ = reduction_input_;
    if (groups_.replicate)
      reduction_ = groups_.replicate->all_reduce(reduction_output_, comm::ReduceOp::kSum, site);
  }
}

void Unit::finish_reduction() {
  if (!reduction_input_.defined()) return;
  at::NoGradGuard no_grad;
  auto work = std::move(reduction_);
  if (work) work->wait();
  reduction_input_.reset();
  note_buffer(false, "gradients");
  at::Tensor mean = std::exchange(reduction_output_, at::Tensor());
  int ranks = groups_.shard->world_size() * groups_.replicas();
  if (ranks > 1) mean.div_(ranks);
  if (storage_.shard_gradient().defined()) {
    storage_.shard_gradient().add_(mean);
  } else {
    storage_.set_shard_gradient(mean);
  }
}

int64_t Unit::live_bytes() const {
  return storage_.live_bytes() + (reduction_input_.defined() ? storage_.unsharded_bytes() : 0);
}

void Unit::reset() {
  for (auto* work : {&gather_, &reduction_}) {
    if (!*work) continue;
    try {
      (*work)->wait();
    } catch (const std::exception&) {
      // The step that failed has reported it.
    }
    work->reset();
  }
  storage_.detach_gradients();
  reduction_input_.reset();
  reduction_output_.reset();
  if (is_cut()) storage_.free_unsharded();
  state_ = State::kSharded;
}

}  // namespace fsdp::shard
