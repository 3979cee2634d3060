#pragma once

// Shapes of tensors in files, which may be damaged.

#include <cstdint>
#include <string>
#include <vector>

namespace fsdp::util {

/// Product of the dimensions. -1 if a dimension is negative or `itemsize_bytes` times the product exceeds 62
/// bits.
int64_t checked_numel(const std::vector<int64_t>& shape, int64_t itemsize_bytes);

/// The shape as text: "[2, 3]".
std::string shape_text(const std::vector<int64_t>& shape);

}  // namespace fsdp::util
