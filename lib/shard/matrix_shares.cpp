#include "shard/matrix_shares.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace fsdp::shard {
namespace {

double cost(const std::vector<int64_t>& shape) {
  const auto rows = static_cast<double>(shape.at(0)), columns = static_cast<double>(shape.at(1));
  return rows * columns * std::min(rows, columns);
}

}  // namespace

std::vector<int> share_matrices(const std::vector<std::vector<int64_t>>& shapes, int ranks) {
  std::vector<size_t> order(shapes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return cost(shapes[a]) > cost(shapes[b]); });
  std::vector<double> load(static_cast<size_t>(ranks));
  std::vector<int> owners(shapes.size());
  for (size_t i : order) {
    auto least = std::min_element(load.begin(), load.end());
    owners[i] = static_cast<int>(least - load.begin());
    *least += cost(shapes[i]);
  }
  return owners;
}

}  // namespace fsdp::shard
