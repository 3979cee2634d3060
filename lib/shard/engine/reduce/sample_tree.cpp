#include "shard/engine/reduce/sample_tree.h"

#include <utility>

#include "base/util/error.h"

namespace fsdp::shard {

void SampleTree::begin(int64_t leaves) {
  leaves_ = leaves;
  found_ = 0;
  parts_.clear();
}

void SampleTree::merge() {
  at::Tensor right = std::move(parts_.back().sum);
  parts_.pop_back();
  at::Tensor& left = parts_.back().sum;
  left = left.use_count() > 1 ? left.add(right) : left.add_(right);
  ++parts_.back().level;
}

void SampleTree::push(int level, at::Tensor sum) {
  found_ += int64_t{1} << level;
  FSDP_CHECK(found_ <= leaves_, "leaf ", found_, " of ", leaves_);
  parts_.push_back({level, std::move(sum)});
  while (parts_.size() > 1 && parts_[parts_.size() - 2].level == parts_.back().level) merge();
}

at::Tensor SampleTree::take() {
  FSDP_CHECK(is_complete(), "leaf ", found_, " of ", leaves_);
  while (parts_.size() > 1) merge();
  at::Tensor sum = std::move(parts_.back().sum);
  begin(0);
  return sum;
}

}  // namespace fsdp::shard
