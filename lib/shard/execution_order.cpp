#include "shard/execution_order.h"

#include <algorithm>

namespace fsdp::shard {

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
  begun_in_backward_.clear();
  follows_ = false;
}

std::optional<size_t> ExecutionOrder::expected() const {
  if (begun_.size() >= last_pass_.size()) return std::nullopt;
  return last_pass_[begun_.size()];
}

std::vector<size_t> ExecutionOrder::next(size_t most) const {
  if (!follows_) return {};
  size_t begin = begun_.size();
  size_t end = begin + std::min(most, last_pass_.size() - begin);
  return {last_pass_.begin() + static_cast<std::ptrdiff_t>(begin),
          last_pass_.begin() + static_cast<std::ptrdiff_t>(end)};
}

void ExecutionOrder::begin_in_backward(size_t unit) {
  if (unit >= begun_in_backward_.size()) begun_in_backward_.resize(unit + 1);
  ++begun_in_backward_[unit];
}

std::optional<size_t> ExecutionOrder::next_in_backward(size_t unit) const {
  std::vector<size_t> begun = begun_in_backward_;
  bool passed = false;
  for (auto here = ended_.rbegin(); here != ended_.rend(); ++here) {
    if (*here < begun.size() && begun[*here] > 0) {
      --begun[*here];  // each use of a unit counts once
    } else if (passed && *here != unit) {
      return *here;
    }
    passed = passed || *here == unit;
  }
  return std::nullopt;
}

}  // namespace fsdp::shard
