#pragma once

// UnitLayout: the places of a unit's parameters in each rank's shard, in the output of an all-gather of the
// shards, and in the unsharded buffer of which the module's parameters are views.
//
// FlatLayout (FSDP1, FairScale): the parameters one after another, padded and cut into equal shards, which
// begin at multiples of 16 bytes unless they are tiny. A shard may begin and end inside a parameter, hold
// several, or hold padding only. The gathered shards are the unsharded buffer.
//
//   | parameter 0 | parameter 1 |  ...  | padding |        gathered_numel() = world_size * shard_numel()
//   | shard of rank 0 | shard of rank 1 |   ...   |
//
// PerParameterLayout (FSDP2's _fsdp_param.py, XLA's FSDP via SPMD): each parameter is cut on one dimension,
// of size d, into chunks of ceil(d / world_size), as torch.chunk() does: the last chunks may be smaller or
// empty. A shard holds the rank's chunk of every parameter, each padded to a whole chunk, so all shards have
// one structure:
//
//   shard     | chunk of parameter 0 | padding | chunk of parameter 1 | padding | ...
//   gathered  | shard of rank 0 | shard of rank 1 | ...
//
// Each parameter is copied from the gathered shards to its place in the unsharded buffer, and its gradient to
// the input of the reduce-scatter, by one copy for the ranks with whole chunks and one for the rank with the
// rest. A chunk of a dimension other than the first is a range of columns of a matrix whose rows are the
// dimensions before it: of [4096, 11008] cut on dimension 1 over 8 ranks, columns [r * 1376, (r + 1) * 1376)
// of 4096 rows.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/util/rectangle.h"
#include "shard/units/options.h"

namespace fsdp::shard {

/// The place of a parameter in its unit.
struct ParameterPlace {
  std::string name;
  std::vector<int64_t> shape;
  int64_t numel = 0;
  int64_t offset = 0;  ///< place of the first element in the unsharded buffer
};

/// The part of a parameter in one rank's shard, where it is contiguous. May be empty.
struct LocalRange {
  util::Rectangle columns{};
  int64_t shard_offset = 0;  ///< place of the first element in the shard
};

/// A part of a parameter, as a strided view of the contiguous parameter and one of the gathered shards; both
/// have `shape`, and their offsets count elements.
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
    int64_t shard_dimension = 0;  ///< dimension on which the per_parameter layout cuts it
  };

  virtual ~UnitLayout() = default;

  const std::vector<ParameterPlace>& parameters() const { return parameters_; }

  int64_t numel() const { return numel_; }  ///< number of elements of the parameters, without padding
  /// Number of elements of a shard, with padding; the same on every rank.
  int64_t shard_numel() const { return shard_numel_; }
  /// Number of elements that an all-gather of the shards yields and a reduce-scatter of the gradients takes.
  int64_t gathered_numel() const { return shard_numel_ * world_size_; }
  /// Whether the gathered shards are the unsharded buffer.
  virtual bool gathers_in_place() const = 0;
  int64_t unsharded_numel() const { return gathers_in_place() ? gathered_numel() : numel_; }

  virtual LocalRange local_range(size_t parameter, int rank) const = 0;

  /// The pieces that make up a parameter, at most two for any number of ranks (shard/engine/layout_views.h
  /// makes tensors of them).
  virtual std::vector<PiecePlace> pieces(size_t parameter) const = 0;

 protected:
  UnitLayout(const std::vector<Parameter>& parameters, int world_size);

  std::vector<ParameterPlace> parameters_;
  int world_size_;
  int64_t numel_ = 0;
  int64_t shard_numel_ = 0;  ///< set by the derived class
};

class FlatLayout final : public UnitLayout {
 public:
  FlatLayout(const std::vector<Parameter>& parameters, int world_size);

  bool gathers_in_place() const override { return true; }
  /// The result has one row.
  LocalRange local_range(size_t parameter, int rank) const override;
  std::vector<PiecePlace> pieces(size_t parameter) const override;
};

class PerParameterLayout final : public UnitLayout {
 public:
  /// Parameters without dimensions are cut as [1].
  PerParameterLayout(const std::vector<Parameter>& parameters, int world_size);

  bool gathers_in_place() const override { return world_size_ == 1; }
  LocalRange local_range(size_t parameter, int rank) const override;
  std::vector<PiecePlace> pieces(size_t parameter) const override;

 private:
  struct ParameterCut {
    int64_t rows = 1;     ///< product of the dimensions before the one that is cut
    int64_t columns = 0;  ///< number of columns of the whole parameter
    int64_t chunk = 0;    ///< number of columns of a rank
    int64_t shard_offset = 0;
  };
  std::vector<ParameterCut> cuts_;  ///< indexed by parameter
};

std::unique_ptr<UnitLayout> make_layout(util::Named<Layout> layout,
                                        const std::vector<UnitLayout::Parameter>& parameters, int world_size);

}  // namespace fsdp::shard
