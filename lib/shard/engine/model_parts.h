#pragma once

// Parameters of which the ranks of the mesh's axis model have parts (ShardOptions::parts), joined and cut again,
// between steps.

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

  /// Whether ranks have different parts of it; else each has it whole.
  static bool are_several(const NamedParameter& parameter) {
    return parameter.part && !parameter.part->is_whole();
  }

  /// The whole parameter; `own` itself where that is whole.
  /// own: this rank's part of its values, of any type
  at::Tensor joined(const NamedParameter& parameter, const at::Tensor& own) const;

  /// Copies to `own` this rank's part of the values that `whole` has on rank `owner` of the group: sums of one number
  /// and zeros. Only of a parameter with several parts.
  void distribute(const NamedParameter& parameter, const at::Tensor& whole, int owner,
                  const at::Tensor& own) const;

 private:
  std::shared_ptr<comm::Communicator> group_;
};

}  // namespace fsdp::shard
