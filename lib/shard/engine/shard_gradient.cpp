#include "shard/engine/shard_gradient.h"

#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "base/util/error.h"
#include "model/kernels/below_autograd.h"

namespace fsdp::shard {
namespace {

/// Returns a range of `whole` that autograd does not know as a view, because zero_grad() detaches gradients
/// in place, which it refuses for views. Writes to either tensor count as writes to both.
at::Tensor range_of(const at::Tensor& whole, int64_t offset, int64_t numel) {
  const kernels::BelowAutograd below;
  at::Tensor range = whole.narrow(0, offset, numel);
  torch::autograd::impl::set_version_counter(range, torch::autograd::impl::version_counter(whole));
  return range;
}

bool has_own_gradient(const ShardLeaf& leaf) { return leaf.tensor.grad().defined(); }

}  // namespace

void ShardGradient::clear() {
  sum_.reset();
  is_partial_ = false;
  for (const ShardLeaf& leaf : leaves_) leaf.tensor.mutable_grad().reset();
}

void ShardGradient::add(const at::Tensor& mean, std::optional<double> squares) {
  drop_what_leaves_dropped();
  squares_.reset();
  if (sum_.defined()) {
    sum_.add_(mean);
    return;
  }
  sum_ = mean.to(type_);
  squares_ = squares;
  squared_ = sum_._version();
  show_in_leaves();
}

void ShardGradient::add_partial(const at::Tensor& sums) {
  if (sum_.defined() && !is_partial_) {
    fail(
        ErrorKind::kUsage,
        "expected every backward pass but the last to leave out the all-reduce; found a pass without it after one "
        "with it; call zero_gradients() between them");
  }
  add(sums);
  is_partial_ = true;
}

at::Tensor ShardGradient::take_partial() {
  at::Tensor sums = sum_;
  clear();
  return sums;
}

std::optional<double> ShardGradient::squares() const {
  return sum_.defined() && sum_._version() == squared_ ? squares_ : std::nullopt;
}

/// Drops the parts of the sum whose leaves have no gradient any longer, after an optimizer's zero_grad().
void ShardGradient::drop_what_leaves_dropped() {
  if (leaves_.empty() || !sum_.defined()) return;
  if (std::ranges::none_of(leaves_, has_own_gradient)) return clear();
  for (const ShardLeaf& leaf : leaves_) {
    if (!has_own_gradient(leaf)) sum_.narrow(0, leaf.offset, leaf.tensor.numel()).zero_();
  }
  show_in_leaves();
}

void ShardGradient::show_in_leaves() {
  for (const ShardLeaf& leaf : leaves_) {
    leaf.tensor.mutable_grad() = range_of(sum_, leaf.offset, leaf.tensor.numel());
  }
}

const std::vector<ShardLeaf>& ShardGradient::leaves_of(const UnitLayout& layout, int rank,
                                                       const at::Tensor& shard,
                                                       const std::vector<NamedParameter>& parameters) {
  if (!leaves_.empty()) return leaves_;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const LocalRange local = layout.local_range(i, rank);
    const int64_t numel = local.columns.numel();
    if (!parameters[i].tensor.requires_grad() || numel == 0) continue;
    leaves_.push_back({.parameter = i,
                       .offset = local.shard_offset,
                       .tensor = range_of(shard, local.shard_offset, numel).set_requires_grad(true)});
  }
  if (sum_.defined()) show_in_leaves();
  return leaves_;
}

}  // namespace fsdp::shard
