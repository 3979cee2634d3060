#pragma once

#include <ostream>
#include <vector>

#include "checkpoint/tensor_source.h"

namespace fsdp::checkpoint {

/// Tensors as a tree by the parts of their names, a line a tensor and a line with sums a group; numbered
/// groups in the order of their numbers.
void write_tensor_tree(const std::vector<TensorInfo>& tensors, std::ostream& out);

}  // namespace fsdp::checkpoint
