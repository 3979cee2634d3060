#pragma once

// Differentiable collectives inside of a layer that several ranks compute together (Shoeybi et al.:
// Megatron-LM, 2019, section 3; Korthikanti et al.: Reducing activation recomputation in large transformer
// models, 2022, section 4.2). In a region the ranks compute different things from the same input, so that the
// gradient of the input is the sum over the ranks.
//
//   function            forward          backward         between
//   copy_to_ranks       nothing          all-reduce       outside, whole     -> a region
//   gather              all-gather       reduce-scatter   outside, in parts  -> a region
//   reduce_from_ranks   all-reduce       nothing          a region's sums    -> outside, whole
//   reduce_scatter      reduce-scatter   all-gather       a region's sums    -> outside, in parts
//   split               own part         all-gather       outside, whole     -> outside, in parts
//   gather_alike        all-gather       own part         outside, in parts  -> outside, whole
//
// All are collective in forward and backward, with the same graph on every rank. They keep the communicator
// alive, return x itself for one rank, and wait like Work::wait(). First derivatives only.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <variant>

#include "comm/api/communicator.h"

namespace fsdp::parallel {

/// Prefix of the layer's name in traces and messages.
inline const std::string kLayerSite = "layer ";

/// The ranks that share a layer.
struct Ranks {
  std::shared_ptr<comm::Communicator> group;
  std::string layer;

  int64_t count() const { return group->world_size(); }
  int64_t rank() const { return group->rank(); }
};

at::Tensor copy_to_ranks(const at::Tensor& x, const Ranks& ranks);
at::Tensor reduce_from_ranks(const at::Tensor& x, const Ranks& ranks);

// Parts are equal, in the order of the ranks along `dimension` (negative: from the last). These functions
// throw Error(kUsage) for a size that the number of ranks does not divide.

at::Tensor gather(const at::Tensor& part, int64_t dimension, const Ranks& ranks);
at::Tensor gather_alike(const at::Tensor& part, int64_t dimension, const Ranks& ranks);
at::Tensor reduce_scatter(const at::Tensor& x, int64_t dimension, const Ranks& ranks);
at::Tensor split(const at::Tensor& x, int64_t dimension, const Ranks& ranks);

/// Distribution of an activation over the ranks, in the terms of torch.distributed.tensor.
struct Replicate {
  bool operator==(const Replicate&) const = default;
};
struct Shard {
  int64_t dim = 0;
  bool operator==(const Shard&) const = default;
};
using Layout = std::variant<Replicate, Shard>;

/// Returns "Replicate", "Shard(1)".
std::string to_string(const Layout& layout);

/// Returns an activation as the input of a region: whole.
at::Tensor enter_region(const at::Tensor& x, const Layout& from, const Ranks& ranks);
/// Returns the sum of the ranks' results of a region.
at::Tensor leave_region(const at::Tensor& x, const Layout& to, const Ranks& ranks);
/// Changes the layout outside of regions. Throws Error(kUsage) from one cut to another.
at::Tensor redistribute(const at::Tensor& x, const Layout& from, const Layout& to, const Ranks& ranks);

/// Returns all ranks' tensors [...], without autograd -> [ranks, ...]
at::Tensor gathered(const at::Tensor& mine, const Ranks& ranks);

}  // namespace fsdp::parallel
