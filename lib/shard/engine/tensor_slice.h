#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/util/rectangle.h"
#include "model/kernels/block_codes.h"

namespace fsdp::shard {

/// A whole tensor under its name in the unsharded model.
struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

/// One rectangle of the tensor `name`, whose global shape is `shape`: an entry of a sharded state dict, in
/// which a tensor may have several. `data` is 1-D and contiguous, with range.numel() elements, and may be
/// empty. All slices of a tensor on all ranks use the same number of rows. In checkpoints, names are
/// "model/<parameter>" for weights and "optimizer/<state>/<parameter>" for optimizer state.
struct TensorSlice {
  std::string name;
  std::vector<int64_t> shape;
  util::Rectangle range{};
  at::Tensor data{};
  /// If given, `data` are its codes: fp32 numbers in 8 bits.
  std::optional<kernels::BlockCodes> coded{};

  int64_t numel() const { return range.numel(); }
  /// The type of the numbers.
  at::ScalarType dtype() const { return coded ? at::kFloat : data.scalar_type(); }
};

}  // namespace fsdp::shard
