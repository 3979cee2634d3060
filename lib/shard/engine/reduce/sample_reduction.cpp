#include "shard/engine/reduce/sample_reduction.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/record_function.h>

#include <iterator>
#include <utility>

#include "base/util/error.h"
#include "shard/engine/engine.h"

namespace fsdp::shard {
namespace {

int64_t rounded_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

/// Fills `to` [ranks, gradients, slots, n]: from [gradients][ranks, n] in the slots of `nodes` that have
/// `leaf`, -0 elsewhere.
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

SampleReduction& by_sample(Unit& unit) {
  auto* reduction = dynamic_cast<SampleReduction*>(&unit.reduction());
  FSDP_CHECK(reduction != nullptr, "unit ", unit.name(), " does not sum by sample");
  return *reduction;
}

}  // namespace

void SampleReduction::begin(const SampleStep& step, SampleSums begun) {
  FSDP_CHECK(begun.leaves == step.span.first, "sums of ", begun.leaves, " leaves, not ", step.span.first);
  step_ = step;
  round_ = 0;
  sums_ = std::move(begun);
  before_.clear();
}

std::vector<SampleSums> SampleReduction::begun_sums() const {
  std::vector<SampleSums> sums = before_;
  if (sums_.leaves < step_.span.leaves) sums.push_back(sums_);
  return sums;
}

SampleRound SampleReduction::next_round(int64_t gradients) {
  const ProcessGroups& groups = unit_.groups();
  const SamplePlace place{
      .ranks = groups.shard->world_size(),
      .rank = groups.shard->rank(),
      .replicas = groups.replicas(),
      .replica = groups.replica_rank(),
      .ranks_in_pairs = groups.reduce_scatter->adds_in_pairs(),
      .replicas_in_pairs = groups.replicate == nullptr || groups.replicate->adds_in_pairs(),
      .span = step_.span};
  SampleRound round = sample_round(place, round_++);
  round.gradients = gradients;
  return round;
}

void SampleReduction::start(Reach /*reach*/) {
  FSDP_CHECK(!added_, "unit ", unit_.name(), " is being reduced already");
  FSDP_CHECK(round_ < step_.rounds, "unit ", unit_.name(), " is reduced in round ", round_ + 1, " of ",
             step_.rounds);
  RECORD_USER_SCOPE("unit/reduce " + unit_.name());
  const at::NoGradGuard no_grad;
  const auto sums = std::make_shared<GradientSums>();
  const std::vector<at::Tensor> gradients = unit_.storage().gradients().detach_all();
  FSDP_CHECK(gradients.front().defined(), "unit ", unit_.name(), " has no gradients to reduce");
  const SampleRound round = next_round(std::ssize(gradients));
  const int64_t slots = round.gradients * std::ssize(round.inside);
  if (slots == 1) {
    sums->input = gradients[0];
  } else {
    sums->input = at::empty({slots * gradients[0].numel()}, gradients[0].options());
    fill_slots(sums->input, gradients, unit_.groups().shard->world_size(), round.inside, round.leaf);
  }
  const auto give_back_input = [this, sums] {
    sums->input.reset();
    unit_.note_buffer(false, BufferKind::kGradients, unit_.storage().gradients().nbytes());
  };
  if (unit_.is_cut()) {
    collective_ = reduce_scatter(first(), sums, sums->input, "backward", /*is_last=*/false);
    sent_ = first().enqueue_release(give_back_input);
    if (across() != nullptr) wait_for_first(*across());
  } else {
    sums->output = sums->input;
  }
  if (across() != nullptr) reduce_slots_across(*sums, round);
  if (!unit_.is_cut()) sent_ = first().enqueue_release(give_back_input);
  comm::Communicator& last = across() != nullptr ? *across() : first();
  added_ = last.enqueue([this, sums, round] {
    add_nodes(*sums, round);
    sums->output.reset();
  });
}

/// Uses a reduce-scatter and an all-gather, because an all-reduce of a group may add ranks in any order.
void SampleReduction::reduce_slots_across(GradientSums& sums, const SampleRound& round) {
  comm::Communicator& group = *across();
  const int64_t n = unit_.storage().layout().shard_numel(), inside = std::ssize(round.inside),
                all = std::ssize(round.all), count = round.gradients * all * n;
  const at::Tensor own = sums.output;
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
  const comm::CallSite site{.unit = unit_.name(), .pass = "backward"};
  group.reduce_scatter(part, slots, site);
  across_ = group.all_gather(slots, part, site);
  const auto bytes = static_cast<int64_t>(part.nbytes());
  unit_.count(
      {.all_gathers = 1, .all_gather_bytes = bytes, .reduce_scatters = 1, .reduce_scatter_bytes = bytes});
  sums.output = slots;
}

void SampleReduction::add_nodes(const GradientSums& sums, const SampleRound& round) {
  const at::NoGradGuard no_grad;
  const int64_t n = unit_.storage().layout().shard_numel(), all = std::ssize(round.all);
  if (step_.may_break_off) {
    if (before_.size() == kSumsBefore) before_.erase(before_.begin());
    before_.push_back(sums_);
  }
  std::vector<SampleTree>& trees = sums_.trees;
  if (trees.empty()) {
    trees.resize(static_cast<size_t>(round.gradients));
    for (SampleTree& tree : trees) tree.begin(step_.span.leaves);
  }
  FSDP_CHECK(std::ssize(trees) == round.gradients, "unit ", unit_.name(), ": ", trees.size(), " and now ",
             round.gradients, " gradients of a parameter");
  for (int64_t i = 0; i < round.gradients * all; ++i) {
    trees[static_cast<size_t>(i / all)].push(round.all[static_cast<size_t>(i % all)].level,
                                             sums.output.narrow(0, i * n, n));
  }
  sums_.leaves = round.end;
  if (!trees.front().is_complete()) return;
  const at::Tensor sum = trees[0].take();
  for (size_t i = 1; i < trees.size(); ++i) sum.add_(trees[i].take());
  unit_.storage().gradient().add(sum);
}

void begin_sample_sums(Engine& engine, const SampleStep& step, std::vector<SampleSums> begun) {
  begun.resize(engine.units().size());
  for (size_t i = 0; i < begun.size(); ++i) by_sample(*engine.units()[i]).begin(step, std::move(begun[i]));
}

std::vector<std::vector<SampleSums>> begun_sample_sums(Engine& engine) {
  engine.reset();
  std::vector<std::vector<SampleSums>> sums;
  for (const auto& unit : engine.units()) sums.push_back(by_sample(*unit).begun_sums());
  return sums;
}

void require_all_sample_sums(const Engine& engine) {
  for (const auto& unit : engine.units()) {
    if (by_sample(*unit).has_all_rounds()) continue;
    fail(
        ErrorKind::kUsage, "unit ", unit->name(),
        ": expected gradients in every micro-batch of a step, whose sums would depend on the number of ranks "
        "otherwise; found none in some; leave training.reproducible = \"world_size\" out");
  }
}

}  // namespace fsdp::shard
