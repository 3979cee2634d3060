#include "shard/engine/reduce/group_reduction.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/record_function.h>

#include "base/util/error.h"
#include "shard/engine/pending_work.h"

namespace fsdp::shard {

void GroupReduction::start(Reach reach) {
  FSDP_CHECK(!added_, "unit ", unit_.name(), " is being reduced already");
  RECORD_USER_SCOPE("unit/reduce " + unit_.name());
  const at::NoGradGuard no_grad;
  const auto [sums, last] = issue(reach);
  last.enqueue([this, sums = sums, reach] { add(*sums, reach); });
  added_ = last.enqueue_release([sums = sums] { sums->output.reset(); });
  last_ = &last;
}

GroupReduction::Issued GroupReduction::issue(Reach reach) {
  const auto sums = std::make_shared<GradientSums>();
  sums->input = unit_.storage().gradients().detach();
  FSDP_CHECK(sums->input.defined(), "unit ", unit_.name(), " has no gradients to reduce");
  const ProcessGroups& groups = unit_.groups();
  const double predivide = predivide_factor(unit_.options(), groups.world->world_size());
  if (predivide != 1) first().enqueue([sums, predivide] { sums->input.div_(predivide); });
  sums->divisor = groups.divisor() / predivide;

  const bool is_cut = unit_.is_cut(), goes_across = across() != nullptr && reach == Reach::kAll;
  if (is_cut) {
    collective_ = reduce_scatter(first(), sums, sums->input, "backward", /*is_last=*/across() == nullptr);
  } else {
    sums->output = sums->input;
    collective_ = goes_across ? reduce_across(sums) : nullptr;
  }
  sent_ = first().enqueue_release([this, sums, is_cut] {
    sums->input.reset();
    if (!is_cut) sums->read_across.reset();  // otherwise the second group's queue reads it
    unit_.note_buffer(false, BufferKind::kGradients, unit_.storage().gradients().nbytes());
  });
  if (!is_cut || !goes_across) return {sums, first()};
  wait_for_first(*across());
  across_ = reduce_across(sums);
  across_sent_ = across()->enqueue_release([sums] { sums->read_across.reset(); });
  return {sums, *across()};
}

comm::Communicator& GroupReduction::first() const {
  return unit_.is_cut() || across() == nullptr ? unit_.groups().reducing() : *across();
}

void GroupReduction::wait_for_first(comm::Communicator& group) const {
  group.enqueue([sent = std::shared_ptr<comm::Work>(first().enqueue([] {}))] { sent->wait(); });
}

std::unique_ptr<comm::Work> GroupReduction::reduce_scatter(comm::Communicator& group, const Sums& sums,
                                                           at::Tensor whole, const char* pass, bool is_last) {
  sums->output = at::empty({whole.numel() / group.world_size()}, whole.options());
  unit_.count({.reduce_scatters = 1, .reduce_scatter_bytes = group.link_bytes_of_part(sums->output)});
  const comm::CallSite site{.unit = unit_.name(), .pass = pass};
  if (!is_last || !sums->finishes_runs()) return group.reduce_scatter(sums->output, whole, site);
  const auto finish_run = [sums](float* run, int64_t n) { sums->finish_run(run, n); };
  return group.reduce_scatter_and_finish(sums->output, whole, finish_run, site);
}

void GroupReduction::add(GradientSums& sums, Reach /*reach*/) {
  sums.finish();
  unit_.storage().gradient().add(sums.output, sums.squares);
}

void GroupReduction::finish_sending() {
  wait_for(collective_);
  wait_for(sent_);
  if (!across_) wait_for(added_);
}

void GroupReduction::finish_across() {
  wait_for(across_);
  wait_for(across_sent_);
}

void GroupReduction::finish() {
  finish_sending();
  finish_across();
  wait_for(added_);
  wait_for(used_);
}

void GroupReduction::use_gradient(std::function<void()> use) {
  if (!added_) return use();
  used_ = last_->enqueue(std::move(use));
}

void GroupReduction::reset() {
  for (auto* work : {&collective_, &sent_, &across_, &across_sent_, &added_, &used_}) {
    ignore_errors_of([work] { wait_for(*work); });
  }
}

}  // namespace fsdp::shard
