#include "shard/engine/model_parts.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "base/tensor/rectangle_view.h"
#include "base/util/error.h"

namespace fsdp::shard {
namespace {

/// Number of elements of the largest part. Collectives move parts of equal size.
int64_t most_of(const nn::ParameterPart& part) {
  int64_t most = 0;
  for (const util::Rectangle& range : part.ranges_of_ranks) most = std::max(most, range.numel());
  return most;
}

/// Calls use(view of the whole, view of its elements in parts [ranks, most]) for each rank's part.
template <typename Use>
void for_each_rank(const nn::ParameterPart& part, const at::Tensor& whole, const at::Tensor& parts,
                   const Use& use) {
  for (size_t rank = 0; rank < part.ranges_of_ranks.size(); ++rank) {
    const util::Rectangle& range = part.ranges_of_ranks[rank];
    use(util::rectangle_view(whole, range),
        parts[static_cast<int64_t>(rank)].narrow(0, 0, range.numel()).view({range.height(), range.length()}));
  }
}

}  // namespace

at::Tensor ModelParts::joined(const NamedParameter& parameter, const at::Tensor& own) const {
  if (!are_several(parameter)) return own;
  const nn::ParameterPart& part = *parameter.part;
  at::Tensor mine = at::zeros({most_of(part)}, own.options());
  mine.narrow(0, 0, own.numel()).copy_(own.reshape({-1}));
  at::Tensor all = at::empty({group_->world_size(), mine.numel()}, own.options());
  group_->all_gather(all.view({-1}), mine, {.unit = parameter.name, .pass = "optimizer"})->wait();
  at::Tensor whole = at::empty(part.whole_shape, own.options());
  for_each_rank(part, whole, all,
                [](const at::Tensor& of_whole, const at::Tensor& of_parts) { of_whole.copy_(of_parts); });
  return whole;
}

void ModelParts::distribute(const NamedParameter& parameter, const at::Tensor& whole, int owner,
                            const at::Tensor& own) const {
  FSDP_CHECK(are_several(parameter), parameter.name, " is whole");
  const nn::ParameterPart& part = *parameter.part;
  at::Tensor all = at::zeros({group_->world_size(), most_of(part)}, own.options());
  if (rank() == owner) {
    for_each_rank(part, whole, all,
                  [](const at::Tensor& of_whole, const at::Tensor& of_parts) { of_parts.copy_(of_whole); });
  }
  at::Tensor mine = at::empty({all.size(1)}, own.options());
  group_->reduce_scatter(mine, all.view({-1}), {.unit = parameter.name, .pass = "optimizer"})->wait();
  own.copy_(mine.narrow(0, 0, own.numel()).view(own.sizes()));
}

}  // namespace fsdp::shard
