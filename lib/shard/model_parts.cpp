#include "shard/model_parts.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>

#include "util/rectangle_view.h"

namespace fsdp::shard {
namespace {

/// [ranks, n]
at::Tensor gathered(comm::Communicator& group, const at::Tensor& mine, const std::string& name) {
  at::Tensor all = at::empty({group.world_size(), mine.numel()}, mine.options());
  group.all_gather(all.view({-1}), mine, {.unit = name})->wait();
  return all;
}

/// The parts of all ranks.
std::vector<util::Rectangle> ranges(comm::Communicator& group, const nn::ParameterPart& part) {
  const util::Rectangle& range = part.range;
  const std::array<int64_t, 5> numbers{range.begin, range.end, range.rows, range.row_begin, range.row_end};
  at::Tensor mine = at::empty({5}, at::kLong);
  std::ranges::copy(numbers, mine.mutable_data_ptr<int64_t>());
  const at::Tensor all = gathered(group, mine, part.name);
  std::vector<util::Rectangle> of_ranks;
  for (int64_t rank = 0; rank < all.size(0); ++rank) {
    const int64_t* of_rank = all.const_data_ptr<int64_t>() + 5 * rank;
    of_ranks.push_back({of_rank[0], of_rank[1], of_rank[2], of_rank[3], of_rank[4]});
  }
  return of_ranks;
}

}  // namespace

at::Tensor ModelParts::joined(const NamedParameter& parameter, const at::Tensor& own) const {
  if (!parameter.part || parameter.part->is_whole()) return own;
  const std::vector<util::Rectangle> of_ranks = ranges(*group_, *parameter.part);
  int64_t most = 0;
  for (const util::Rectangle& range : of_ranks) most = std::max(most, range.numel());
  at::Tensor mine = at::zeros({most}, own.options());
  mine.narrow(0, 0, own.numel()).copy_(own.reshape({-1}));
  const at::Tensor all = gathered(*group_, mine, parameter.name);
  at::Tensor whole = at::empty(parameter.part->whole_shape, own.options());
  for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
    const util::Rectangle& range = of_ranks[rank];
    const at::Tensor part = all[static_cast<int64_t>(rank)].narrow(0, 0, range.numel());
    util::rectangle_view(whole, range).copy_(part.view({range.height(), range.length()}));
  }
  return whole;
}

void ModelParts::distribute(const NamedParameter& parameter, const at::Tensor& whole, int owner,
                            const at::Tensor& own) const {
  group_->broadcast(whole, owner, {.unit = parameter.name})->wait();
  own.copy_(util::rectangle_view(whole, parameter.part->range).reshape(own.sizes()));
}

}  // namespace fsdp::shard
