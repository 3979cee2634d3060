#pragma once

// Whole matrices between steps, for optimizers that need them (Muon): a matrix at a time, each on one rank
// only, so that ranks share the work.
//
// What the ranks of a unit hold of something shaped like its shards (a momentum) is all-gathered. Each rank
// computes a fair part of the unit's matrices in place, puts zeros where the others' are, and the
// reduce-scatter of that gives every rank its shard of the results: sums of one number and zeros, so they do
// not depend on how the unit is cut. Of a unit that every rank holds whole an all-reduce does the same.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "shard/engine.h"

namespace fsdp::shard {

class MatrixExchange {
 public:
  /// Of a matrix [rows, columns], contiguous; gives one of the same shape.
  using Function = std::function<at::Tensor(const at::Tensor& matrix)>;

  /// `is_matrix` chooses among Engine::segments() and is alike on every rank; what it chooses has two
  /// dimensions. The engine must outlive the object. Not collective.
  MatrixExchange(const Engine& engine, const std::function<bool(const Segment&)>& is_matrix);

  bool has_matrices(size_t unit) const { return !owners_.at(unit).empty(); }

  /// `flat`: [shard_numel] fp32, this rank's part of the unit's matrices, and zeros elsewhere. Replaces it by
  /// the part of their images. Beside it at most one buffer of the unit's size lives, unless the unit is not
  /// cut. Collective.
  void map(size_t unit, const at::Tensor& flat, const Function& function) const;

 private:
  struct Owned {
    size_t parameter = 0;  ///< index into the parameters of the unit's layout
    int rank = 0;          ///< which computes it (shard/matrix_shares.h), of the group that shares the work
  };

  const Engine& engine_;
  std::vector<std::vector<Owned>> owners_;  ///< [unit]
};

}  // namespace fsdp::shard
