#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "util/column_range.h"

namespace fsdp::shard {

/// One range of the tensor `name`, which has `shape` as a whole: an entry of a sharded state dict, of which a
/// rank has any number for a tensor. `data` is 1-D and contiguous, range.numel() elements. An empty range is
/// allowed. All ranks and all slices see a tensor in the same number of rows. In checkpoints names are
/// "model/<parameter>" for weights and "optimizer/<state>/<parameter>" for optimizer state.
struct TensorSlice {
  std::string name;
  std::vector<int64_t> shape;
  util::ColumnRange range{};
  at::Tensor data{};

  int64_t numel() const { return range.numel(); }
};

}  // namespace fsdp::shard
