#pragma once

// UnitLayout: where the parameters of a unit lie, in each rank's shard, in what an all-gather of the shards
// gives, and in the unsharded buffer that the module's parameters are views of. Two layouts are behind it
// (flat_layout.h, per_parameter_layout.h):
//
//   flat            the parameters one after another, cut into equal shards wherever the cuts fall; what is
//                   gathered is the unsharded buffer (FSDP1, FairScale)
//   per_parameter   each parameter cut on one of its dimensions; what is gathered is copied once into the
//                   unsharded buffer (FSDP2, FSDP via SPMD)
//
// Arithmetic only, without libtorch.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "shard/options.h"
#include "util/column_range.h"

namespace fsdp::shard {

/// Where a parameter lies in its unit.
struct ParameterPlace {
  std::string name;
  std::vector<int64_t> shape;
  int64_t numel = 0;
  int64_t offset = 0;  ///< of its first element in the unsharded buffer
};

/// The part of a parameter that lies in one rank's shard, contiguous there; may be empty.
struct LocalRange {
  util::ColumnRange columns{};
  int64_t shard_offset = 0;  ///< of its first element in the shard
};

/// A part of a parameter as a view of the contiguous parameter and as a view of the gathered shards one after
/// another: both have `shape`, an offset in elements and strides.
struct PiecePlace {
  std::vector<int64_t> shape;
  struct View {
    int64_t offset = 0;
    std::vector<int64_t> strides;
  };
  View whole, gathered;
};

class UnitLayout {
 public:
  struct Parameter {
    std::string name;
    std::vector<int64_t> shape;
    int64_t shard_dimension = 0;  ///< on which the per_parameter layout cuts it
  };

  virtual ~UnitLayout() = default;

  const std::vector<ParameterPlace>& parameters() const { return parameters_; }
  int world_size() const { return world_size_; }

  int64_t numel() const { return numel_; }  ///< of the parameters, without padding
  /// The same for every rank, with padding where the parameters do not divide.
  int64_t shard_numel() const { return shard_numel_; }
  /// Of the output of an all-gather of the shards, and of the input of a reduce-scatter of the gradients.
  int64_t gathered_numel() const { return shard_numel_ * world_size_; }
  /// Whether what is gathered is the unsharded buffer.
  virtual bool gathers_in_place() const = 0;
  int64_t unsharded_numel() const { return gathers_in_place() ? gathered_numel() : numel_; }

  virtual LocalRange local_range(size_t parameter, int rank) const = 0;

  /// Where parts of a parameter lie in it and among the gathered shards (shard/layout_views.h makes views of
  /// tensors from them). At most two make up a parameter, whatever the number of ranks.
  virtual std::vector<PiecePlace> pieces(size_t parameter) const = 0;

 protected:
  UnitLayout(const std::vector<Parameter>& parameters, int world_size);

  std::vector<ParameterPlace> parameters_;
  int world_size_;
  int64_t numel_ = 0;
  int64_t shard_numel_ = 0;  ///< set by the layout
};

/// Layouts are alike for a world of one.
std::unique_ptr<UnitLayout> make_layout(util::Named<Layout> layout,
                                        const std::vector<UnitLayout::Parameter>& parameters, int world_size);

}  // namespace fsdp::shard
