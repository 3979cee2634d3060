#include "shard/engine/unit.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/record_function.h>

#include "base/util/error.h"
#include "comm/api/communicator.h"
#include "shard/engine/unit_reduction.h"

namespace fsdp::shard {
namespace {

/// Clears `work` before waiting: a wait() that throws must not be repeated.
void finish(std::unique_ptr<comm::Work>& work) {
  if (auto taken = std::move(work)) taken->wait();
}

}  // namespace

ProcessGroups process_groups(const comm::Mesh& mesh, util::Named<Strategy> strategy,
                             util::Named<HybridOptimizer> optimizer) {
  const auto shard = mesh.group(shard_axes(strategy));
  const auto of_several = [&mesh](const std::vector<comm::MeshAxis>& axes) {
    return mesh.shape().along(axes) > 1 ? mesh.group(axes) : nullptr;
  };
  return {.world = mesh.world(),
          .shard = shard,
          .reduce_scatter = shard,
          .replicate = of_several(replicate_axes(strategy, optimizer)),
          .slices = of_several(slice_axes(strategy, optimizer))};
}

GroupSizes ProcessGroups::sizes() const {
  return {.shards = shard->world_size(), .replicas = replicas(), .slices = slices ? slices->world_size() : 1};
}

ShardPlace ProcessGroups::place() const {
  const GroupSizes groups = sizes();
  return {shard->rank() * groups.slices + (slices ? slices->rank() : 0), groups.parts(), groups.slices};
}

void ProcessGroups::gather(const at::Tensor& whole, const comm::CallSite& site) const {
  const int64_t n = whole.numel() / place().world_size, of_slice = n * place().slices;
  const at::Tensor part = whole.narrow(0, shard->rank() * of_slice, of_slice);
  if (slices) slices->all_gather(part, part.narrow(0, slices->rank() * n, n), site)->wait();
  shard->all_gather(whole, part, site)->wait();
}

void ProcessGroups::reduce(const at::Tensor& output, const at::Tensor& whole,
                           const comm::CallSite& site) const {
  if (!slices) return shard->reduce_scatter(output, whole, site)->wait();
  at::Tensor part = whole;
  if (shard->world_size() > 1) {
    part = at::empty({output.numel() * slices->world_size()}, whole.options());
    shard->reduce_scatter(part, whole, site)->wait();
  }
  slices->reduce_scatter(output, part, site)->wait();
}

Unit::Unit(const UnitPlan& plan, const ProcessGroups& groups, const UnitParts& parts)
    : name_(plan.name),
      groups_(groups),
      options_(plan.options),
      trace_(parts.trace),
      offload_(parts.offload),
      storage_(plan.parameters, groups_.place(), options_.storage, parts.pool, parts.materialize) {
  if (!storage_.shard_is_offloaded()) return;
  FSDP_CHECK(offload_ != nullptr, "unit ", name_, " has no way to the host");
  offload_->expect_shard(static_cast<int64_t>(storage_.shard().nbytes()));
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
  OffloadStreams::Place* place = storage_.shard_is_offloaded() ? &offload_->send(storage_.shard()) : nullptr;
  const at::Tensor own = place != nullptr ? place->values : storage_.shard();
  const util::Event own_is_there = place != nullptr ? place->there : util::Event();
  const at::Tensor part = storage_.own_slice_part();
  groups_.slices->enqueue([own, own_is_there, part] {
    at::NoGradGuard no_grad;
    own_is_there.wait();
    at::Tensor(part).copy_(own);
  });
  if (place != nullptr) place->left = groups_.slices->enqueue([] {});
  slice_gather_ =
      groups_.slices->all_gather(storage_.slice_shard(), part, {.unit = name_, .pass = kBetweenSlices});
  traffic_ += {.all_gathers = 1, .all_gather_bytes = static_cast<int64_t>(part.nbytes())};
}

void Unit::finish_slice_gather() {
  if (const auto taken = std::exchange(slice_gather_, nullptr)) taken->wait();
}

void Unit::start_gather(const char* pass) {
  if (state_ != State::kSharded) return;
  if (storage_.shard_is_unsharded() || storage_.layout().numel() == 0) {
    state_ = State::kGathering;  // until the slice's shard is there
    return;
  }
  RECORD_USER_SCOPE("unit/gather " + name_);
  state_ = State::kGathering;
  comm::Communicator& group = *groups_.shard;
  const bool in_place = storage_.layout().gathers_in_place();
  const bool is_on_host = storage_.source().device() != storage_.unsharded().device();
  OffloadStreams::Place* place = is_on_host ? &offload_->send(storage_.source()) : nullptr;
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
    traffic_ += {.all_gathers = 1,
                 .all_gather_bytes =
                     input.numel() * static_cast<int64_t>(c10::elementSize(options_.storage.param_dtype))};
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
  finish(gather_);
  finish(unpacking_);
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
  if (storage_.gradients_are_attached() || !storage_.has_trainable_parameters()) return;
  at::NoGradGuard no_grad;
  storage_.attach_gradients();
  note_buffer(true, BufferKind::kGradients, storage_.gradient_bytes());
}

void Unit::drop_gradients() {
  const bool has_buffer = storage_.gradients_are_attached();
  storage_.drop_gradients();
  if (has_buffer) note_buffer(false, BufferKind::kGradients, storage_.gradient_bytes());
}

void Unit::start_reduction(Reach reach) {
  FSDP_CHECK(!reduction_ && !leaving_.defined(), "unit ", name_, " is being reduced already");
  RECORD_USER_SCOPE("unit/reduce " + name_);
  at::NoGradGuard no_grad;
  if (options_.storage.sums_by_sample) return start_sample_reduction();
  auto job = std::make_shared<Reduction>();
  job->input = storage_.detach_gradients();
  FSDP_CHECK(job->input.defined(), "unit ", name_, " has no gradients to reduce");
  comm::Communicator* const across = groups_.across();
  comm::Communicator& first = is_cut() || across == nullptr ? *groups_.reduce_scatter : *across;
  const bool goes_across = across != nullptr && reach == Reach::kAll;
  comm::Communicator& last = goes_across ? *across : first;
  const double predivide = predivide_factor(options_, groups_.world->world_size());
  if (predivide != 1) first.enqueue([job, predivide] { job->input.div_(predivide); });
  job->divisor = groups_.divisor() / predivide;

  collective_ = reduce_whole(job, reach);
  auto give_back_input = [this, job] {
    job->input.reset();
    if (!is_cut()) job->partial_sums.reset();  // else they are added in the second group's queue
    note_buffer(false, BufferKind::kGradients, storage_.gradient_bytes());
  };
  sent_ = first.enqueue_release(give_back_input);
  if (is_cut() && goes_across) {
    // Blocks only the second group's queue. Fails if the reduce-scatter fails.
    last.enqueue([sent = std::shared_ptr<comm::Work>(first.enqueue([] {}))] { sent->wait(); });
    across_ = reduce_across(job);
    across_sent_ = last.enqueue_release([job] {
      job->of_slice.reset();
      job->partial_sums.reset();
    });
  }
  if (storage_.gradient_is_offloaded()) return move_to_host(job, last.enqueue([job] { job->finish(); }));
  added_ = last.enqueue([this, job, reach] {
    if (reach == Reach::kSlice) return storage_.add_partial_sums(job->output);
    job->finish();
    storage_.add_to_shard_gradient(job->output, job->squares);
  });
  reduction_ = last.enqueue_release([job] { job->output.reset(); });
}

/// Does not involve the communication stream.
void Unit::move_to_host(const std::shared_ptr<Reduction>& job, std::shared_ptr<comm::Work> reduced) {
  leaving_ = job->output;
  left_ = offload_->receive([this, job, reduced = std::move(reduced)] {
    reduced->wait();
    job->on_host = offload_->copy_to_host(job->output);
    job->output.reset();
  });
  on_host_ = offload_->then([this, job, left = left_] {
    left.synchronize();
    storage_.add_to_shard_gradient(job->on_host);
  });
}

std::unique_ptr<comm::Work> Unit::reduce_whole(const std::shared_ptr<Reduction>& job, Reach reach) {
  if (is_cut()) return reduce_scatter(*groups_.reduce_scatter, job, job->input);
  job->output = job->input;
  return groups_.across() != nullptr && reach == Reach::kAll ? reduce_across(job) : nullptr;
}

std::unique_ptr<comm::Work> Unit::reduce_across(const std::shared_ptr<Reduction>& job) {
  if (groups_.slices) {
    if (is_cut()) job->of_slice = job->output;
    return reduce_scatter(*groups_.slices, job, job->output);
  }
  if (storage_.has_partial_sums()) {
    groups_.replicate->enqueue([this, job] {
      job->partial_sums = storage_.take_partial_sums();
      job->output.add_(job->partial_sums);
    });
  }
  traffic_ += {.all_reduces = 1, .all_reduce_bytes = static_cast<int64_t>(job->output.nbytes())};
  return groups_.replicate->all_reduce(job->output, comm::ReduceOp::kSum,
                                       {.unit = name_, .pass = "backward"});
}

std::unique_ptr<comm::Work> Unit::reduce_scatter(comm::Communicator& group,
                                                 const std::shared_ptr<Reduction>& job,
                                                 const at::Tensor& input) {
  const at::Tensor whole = input;  // may be the output of the reduction before
  job->output = at::empty({whole.numel() / group.world_size()}, whole.options());
  traffic_ += {.reduce_scatters = 1, .reduce_scatter_bytes = static_cast<int64_t>(job->output.nbytes())};
  const char* pass = &group == groups_.slices.get() ? kBetweenSlices : "backward";
  const comm::CallSite site{.unit = name_, .pass = pass};
  const bool is_last = &group == groups_.slices.get() || groups_.across() == nullptr;
  if (options_.storage.sums_by_sample || !is_last || !job->finishes_runs()) {
    return group.reduce_scatter(job->output, whole, site);
  }
  const auto finish = [job](float* sums, int64_t n) { job->finish_run(sums, n); };
  return group.reduce_scatter_and_finish(job->output, whole, finish, site);
}

void Unit::finish_sending() {
  finish(collective_);
  finish(sent_);
  if (!across_) finish(reduction_);
  if (!has_parts()) finish_moving();  // the gradient is the buffer of the whole unit
}

void Unit::finish_moving() {
  if (across_ && !groups_.slices) return;
  finish(across_);
  finish(across_sent_);
  // The caller's stream must wait before the memory is freed.
  if (at::Tensor leaving = std::move(leaving_); leaving.defined()) left_.wait();
}

void Unit::finish_reduction() {
  finish_sending();
  finish(across_);
  finish(across_sent_);
  finish(reduction_);
  finish_moving();
  added_.reset();
  std::exchange(on_host_, {}).wait();
}

void Unit::use_gradient(std::function<void()> use) {
  FSDP_CHECK(offload_ != nullptr, "unit ", name_, " has no thread of the host");
  on_host_ = offload_->then([added = std::move(added_), use = std::move(use)] {
    if (added) added->wait();
    use();
  });
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
  const auto end = [](const auto& wait) {
    try {
      wait();
    } catch (const std::exception&) {
      // Reported by the failed step.
    }
  };
  end([this] { finish_slice_gather(); });
  for (auto* work : {&gather_, &unpacking_, &collective_, &sent_, &across_, &across_sent_, &reduction_}) {
    end([work] { finish(*work); });
  }
  end([this] { finish_moving(); });
  end([this] { std::exchange(on_host_, {}).wait(); });
  added_.reset();
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
