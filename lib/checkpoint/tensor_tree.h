#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace fsdp::checkpoint {

/// Tensors ({name, shape, dtype, bytes} each) as a tree by the parts of their names, a line a tensor and a
/// line with sums a group; numbered groups in the order of their numbers.
std::string tensor_tree(const nlohmann::json& tensors);

}  // namespace fsdp::checkpoint
