#pragma once

// Parameters of which the ranks of the mesh's axis model have parts (ShardOptions::parts): joins and cuts
// them between steps.

#include <ATen/core/Tensor.h>

#include <memory>
#include <utility>

#include "comm/api/communicator.h"
#include "shard/engine/parameter_source.h"

namespace fsdp::shard {

class ModelParts {
 public:
  /// `group`: the ranks of the axis. All functions are collective over it.
  explicit ModelParts(std::shared_ptr<comm::Communicator> group) : group_(std::move(group)) {}

  int count() const { return group_->world_size(); }
  int rank() const { return group_->rank(); }

  /// Whether ranks have different parts of the parameter. Otherwise each has it whole.
  static bool are_several(const NamedParameter& parameter) {
    return parameter.part && !parameter.part->is_whole();
  }

  /// Returns the whole parameter, and `own` itself where that is whole. `own`: this rank's part of its
  /// values, of any type.
  at::Tensor joined(const NamedParameter& parameter, const at::Tensor& own) const;

  /// Copies to `own` this rank's part of the values that `whole` has on rank `owner` of the group, as sums of
  /// one number and zeros. Requires: a parameter with several parts.
  void distribute(const NamedParameter& parameter, const at::Tensor& whole, int owner,
                  const at::Tensor& own) const;

 private:
  std::shared_ptr<comm::Communicator> group_;
};

}  // namespace fsdp::shard
