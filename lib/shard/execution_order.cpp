#include "shard/execution_order.h"

#include <algorithm>

namespace fsdp::shard {

ExecutionOrder::ExecutionOrder(size_t units) {
  begun_.reserve(units);
  ended_.reserve(units);
  last_pass_.reserve(units);
}

void ExecutionOrder::begin_pass() {
  begun_.clear();
  ended_.clear();
  follows_ = knows();
}

void ExecutionOrder::begin(size_t unit) {
  follows_ = follows_ && expected() == unit;
  begun_.push_back(unit);
}

void ExecutionOrder::abandon_pass() {
  begun_.clear();
  ended_.clear();
  follows_ = false;
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
