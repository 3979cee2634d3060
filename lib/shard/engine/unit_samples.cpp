// Unit: reductions that sum by sample (sample_tree.h).

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <bit>
#include <iterator>
#include <utility>
#include <vector>

#include "base/util/error.h"
#include "comm/api/communicator.h"
#include "shard/engine/unit_reduction.h"

namespace fsdp::shard {
namespace {

int64_t rounded_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

/// to [ranks, gradients, slots, n] = from [gradients][ranks, n] in the slots of `nodes` that have `leaf`, else -0.
void fill_slots(const at::Tensor& to, const std::vector<at::Tensor>& from, int64_t ranks,
                const std::vector<SampleNode>& nodes, int64_t leaf) {
  const auto gradients = std::ssize(from), slots = std::ssize(nodes);
  const at::Tensor places = to.view({ranks, gradients * slots, -1});
  for (int64_t i = 0; i < gradients * slots; ++i) {
    const at::Tensor place = places.select(1, i);
    if (nodes[static_cast<size_t>(i % slots)].has(leaf)) {
      place.copy_(from[static_cast<size_t>(i / slots)].view({ranks, -1}));
    } else {
      place.fill_(-0.0);
    }
  }
}

}  // namespace

void Unit::begin_sample_sums(const SampleStep& step, SampleSums begun) {
  FSDP_CHECK(begun.leaves == step.span.first, "sums of ", begun.leaves, " leaves, not ", step.span.first);
  step_ = step;
  round_ = 0;
  sums_ = std::move(begun);
  before_.clear();
}

std::vector<SampleSums> Unit::begun_sums() const {
  std::vector<SampleSums> sums = before_;
  if (sums_.leaves < step_.span.leaves) sums.push_back(sums_);
  return sums;
}

void Unit::start_sample_reduction() {
  FSDP_CHECK(round_ < step_.rounds, "unit ", name_, " is reduced in round ", round_ + 1, " of ",
             step_.rounds);
  auto job = std::make_shared<Reduction>();
  const std::vector<at::Tensor> gradients = storage_.detach_all_gradients();
  FSDP_CHECK(gradients.front().defined(), "unit ", name_, " has no gradients to reduce");
  const SamplePlace place{
      .ranks = groups_.shard->world_size(),
      .rank = groups_.shard->rank(),
      .replicas = groups_.replicas(),
      .replica = groups_.replica_rank(),
      .ranks_in_pairs = groups_.reduce_scatter->adds_in_pairs(),
      .replicas_in_pairs = groups_.replicate == nullptr || groups_.replicate->adds_in_pairs(),
      .span = step_.span};
  SampleRound round = sample_round(place, round_);
  round.gradients = std::ssize(gradients);
  ++round_;
  const int64_t slots = round.gradients * std::ssize(round.inside);
  if (slots == 1) {
    job->input = gradients[0];
  } else {
    job->input = at::empty({slots * gradients[0].numel()}, gradients[0].options());
    fill_slots(job->input, gradients, place.ranks, round.inside, round.leaf);
  }
  comm::Communicator* const across = groups_.replicate.get();
  comm::Communicator& first = is_cut() || across == nullptr ? *groups_.reduce_scatter : *across;
  comm::Communicator& last = across != nullptr ? *across : *groups_.reduce_scatter;
  if (is_cut()) {
    collective_ = reduce_scatter(*groups_.reduce_scatter, job, job->input);
  } else {
    job->output = job->input;
  }
  const auto give_back_input = [this, job] {
    job->input.reset();
    note_buffer(false, BufferKind::kGradients, storage_.gradient_bytes());
  };
  if (is_cut()) sent_ = first.enqueue_release(give_back_input);
  if (across != nullptr) {
    if (is_cut()) {
      // Blocks only the second group's queue. Fails if the reduce-scatter fails.
      last.enqueue([sent = std::shared_ptr<comm::Work>(first.enqueue([] {}))] { sent->wait(); });
    }
    reduce_slots_across(*job, round);
  }
  if (!is_cut()) sent_ = first.enqueue_release(give_back_input);
  reduction_ = last.enqueue([this, job, round = std::move(round)] {
    add_nodes(*job, round);
    job->output.reset();
  });
}

/// Whatever the order in which a group's all-reduce adds, its reduce-scatter adds in that of the ranks.
void Unit::reduce_slots_across(Reduction& job, const SampleRound& round) {
  comm::Communicator& group = *groups_.replicate;
  const int64_t n = storage_.layout().shard_numel(), inside = std::ssize(round.inside),
                all = std::ssize(round.all), count = round.gradients * all * n;
  const at::Tensor own = job.output;
  const at::Tensor slots = at::empty({rounded_up(count, group.world_size())}, own.options());
  group.enqueue([own, slots, n, inside, all, round] {
    const at::NoGradGuard no_grad;
    for (int64_t i = 0; i < round.gradients * all; ++i) {
      const at::Tensor slot = slots.narrow(0, i * n, n);
      const int from = round.from[static_cast<size_t>(i % all)];
      if (from == SampleRound::kNone) {
        slot.fill_(-0.0);
      } else {
        slot.copy_(own.narrow(0, (i / all * inside + from) * n, n));
      }
    }
    const int64_t used = round.gradients * all * n;
    slots.narrow(0, used, slots.numel() - used).zero_();
  });
  const at::Tensor part = at::empty({slots.numel() / group.world_size()}, slots.options());
  const comm::CallSite site{.unit = name_, .pass = "backward"};
  group.reduce_scatter(part, slots, site);
  across_ = group.all_gather(slots, part, site);
  traffic_ += {.all_gathers = 1,
               .all_gather_bytes = static_cast<int64_t>(part.nbytes()),
               .reduce_scatters = 1,
               .reduce_scatter_bytes = static_cast<int64_t>(part.nbytes())};
  job.output = slots;
}

void Unit::add_nodes(const Reduction& job, const SampleRound& round) {
  const at::NoGradGuard no_grad;
  const int64_t n = storage_.layout().shard_numel(), all = std::ssize(round.all);
  if (step_.may_break_off) {
    if (before_.size() == kSumsBefore) before_.erase(before_.begin());
    before_.push_back(sums_);
  }
  std::vector<SampleTree>& trees = sums_.trees;
  if (trees.empty()) {
    trees.resize(static_cast<size_t>(round.gradients));
    for (SampleTree& tree : trees) tree.begin(step_.span.leaves);
  }
  FSDP_CHECK(std::ssize(trees) == round.gradients, "unit ", name_, ": ", trees.size(), " and now ",
             round.gradients, " gradients of a parameter");
  for (int64_t i = 0; i < round.gradients * all; ++i) {
    trees[static_cast<size_t>(i / all)].push(round.all[static_cast<size_t>(i % all)].level,
                                             job.output.narrow(0, i * n, n));
  }
  sums_.leaves = round.end;
  if (!trees.front().is_complete()) return;
  const at::Tensor sum = trees[0].take();
  for (size_t i = 1; i < trees.size(); ++i) sum.add_(trees[i].take());
  storage_.add_to_shard_gradient(sum);
}

}  // namespace fsdp::shard
