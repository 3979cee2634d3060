#pragma once

// Which rank computes which whole matrix (shard/matrix_exchange.h). Needs no libtorch.

#include <cstdint>
#include <vector>

namespace fsdp::shard {

/// Which of `ranks` computes each matrix, so that the most that one rank has to do is small: the most
/// expensive first, each to the rank with the least so far. A matrix [m, n] costs m * n * min(m, n).
std::vector<int> share_matrices(const std::vector<std::vector<int64_t>>& shapes, int ranks);

}  // namespace fsdp::shard
