#include "shard/units/execution_order.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace fsdp::shard {

ExecutionOrder::ExecutionOrder(size_t units, size_t roots) : followed_by_(units), roots_(roots) {
  begun_.reserve(units);
  ended_.reserve(units);
  last_pass_.reserve(units);
  likely_.reserve(units);
  forget();
}

void ExecutionOrder::begin_pass() {
  begun_.clear();
  ended_.clear();
  follows_ = knows();
}

void ExecutionOrder::begin(size_t unit) {
  follows_ = follows_ && expected() == unit;
  is_likely_ = begun_.empty() || std::exchange(followed_by_[begun_.back()], unit) == unit;
  begun_.push_back(unit);
}

void ExecutionOrder::end_pass() {
  followed_by_[begun_.back()] = followed_by_.size();
  last_pass_ = begun_;
}

void ExecutionOrder::forget() {
  begun_.clear();
  ended_.clear();
  last_pass_.clear();
  follows_ = false;
  std::iota(followed_by_.begin(), followed_by_.end(), 1);
  if (!followed_by_.empty()) followed_by_.front() = roots_;
}

std::optional<size_t> ExecutionOrder::expected() const {
  if (begun_.size() >= last_pass_.size()) return std::nullopt;
  return last_pass_[begun_.size()];
}

std::span<const size_t> ExecutionOrder::next(size_t most) const {
  if (!follows_) return {};
  const auto rest = std::span(last_pass_).subspan(begun_.size());
  return rest.first(std::min(most, rest.size()));
}

std::span<const size_t> ExecutionOrder::likely_next(size_t most) {
  if (follows_) return next(most);
  likely_.clear();
  if (!is_likely_) return {};
  const size_t units = followed_by_.size();  // of a circle, no unit need be told twice
  for (size_t unit = followed_by_[begun_.back()]; unit < units && likely_.size() < std::min(most, units);
       unit = followed_by_[unit]) {
    likely_.push_back(unit);
  }
  return likely_;
}

void ExecutionOrder::begin_backward_pass() {
  for (Use& use : ended_) use.begun_in_backward = false;
}

void ExecutionOrder::begin_in_backward(size_t unit) {
  const auto use = std::find_if(ended_.rbegin(), ended_.rend(), [unit](const Use& each) {
    return each.unit == unit && !each.begun_in_backward;
  });
  if (use != ended_.rend()) use->begun_in_backward = true;
}

std::optional<size_t> ExecutionOrder::next_in_backward(size_t unit) const {
  bool passed = false;
  for (auto use = ended_.rbegin(); use != ended_.rend(); ++use) {
    if (passed && !use->begun_in_backward && use->unit != unit) return use->unit;
    passed = passed || use->unit == unit;
  }
  return std::nullopt;
}

}  // namespace fsdp::shard
