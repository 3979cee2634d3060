#pragma once

// Whole matrices for optimizers that need them (Muon), between steps: each matrix is whole on one rank only,
// so the ranks share the work.
//
// A tensor shaped like a unit's shards (a momentum) is all-gathered. Each rank computes its share of the
// unit's matrices in place and zeros the others. A reduce-scatter then gives every rank its shard of the
// results, which are sums of one number and zeros and so do not depend on how the unit is cut. For a unit
// that every rank holds whole, an all-reduce does the same. Parts of a matrix that ranks of the axis model
// have are joined first.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "shard/engine/engine.h"
#include "shard/engine/model_parts.h"

namespace fsdp::shard {

/// Assigns each matrix to one of `ranks` so that the largest load is small: the most expensive matrix first,
/// each to the rank with the least load so far. A matrix [m, n] costs m * n * min(m, n).
std::vector<int> share_matrices(const std::vector<std::vector<int64_t>>& shapes, int ranks);

class MatrixExchange {
 public:
  /// Maps a contiguous matrix [rows, columns] to a matrix of the same shape.
  using Function = std::function<at::Tensor(const at::Tensor& matrix)>;

  /// `is_matrix` selects parameters of two dimensions by their first segment, in the same way on every rank.
  /// The engine must outlive the object. Not collective.
  MatrixExchange(const Engine& engine, const std::function<bool(const Segment&)>& is_matrix);

  bool has_matrices(size_t unit) const { return !owners_.at(unit).empty(); }

  /// Replaces `flat` [shard_numel] fp32, this rank's part of the unit's matrices and zeros elsewhere, by this
  /// rank's part of their images. A unit that is cut needs one more buffer of the whole unit's size.
  /// Collective.
  void map(size_t unit, const at::Tensor& flat, const Function& function) const;

 private:
  struct Owned {
    size_t parameter = 0;  ///< index into the parameters of the unit's layout
    int rank = 0;          ///< rank that computes it, in the group that shares the work
    int model_rank = 0;    ///< rank that computes it, among the ranks that have parts of it
  };
  /// Replaces a part of a matrix by its image, for which the matrix is whole on one rank. Collective over the
  /// parts.
  void map_whole(const NamedParameter& parameter, int model_rank, const at::Tensor& part,
                 const Function& function) const;

  const Engine& engine_;
  ModelParts parts_;
  std::vector<std::vector<Owned>> owners_;  ///< [unit]
};

}  // namespace fsdp::shard
