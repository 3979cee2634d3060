#include "shard/order_check.h"

#include <ATen/ops/empty.h>

namespace fsdp::shard {

std::optional<OrderDifference> check_across_ranks(comm::Communicator& world, size_t unit) {
  int ranks = world.world_size();
  at::Tensor mine = at::empty({1}, at::kLong), all = at::empty({ranks}, at::kLong);
  mine.data_ptr<int64_t>()[0] = static_cast<int64_t>(unit);
  world.all_gather(all, mine, {.unit = "execution order", .pass = "forward"})->wait();
  const int64_t* units = all.data_ptr<int64_t>();
  for (int rank = 1; rank < ranks; ++rank) {
    if (units[rank] == units[0]) continue;
    return OrderDifference{rank, static_cast<size_t>(units[rank]), static_cast<size_t>(units[0])};
  }
  return std::nullopt;
}

}  // namespace fsdp::shard
