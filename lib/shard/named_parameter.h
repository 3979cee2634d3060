#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace fsdp::shard {

/// A parameter under the first of its names; tied names share one tensor and appear once.
struct NamedParameter {
  std::string name;
  at::Tensor tensor;
  std::vector<std::string> other_names{};  ///< of a tied parameter, in the order of the modules
  int64_t shard_dimension = 0;             ///< on which the per_parameter layout cuts it
};

}  // namespace fsdp::shard
