#pragma once

// The per-parameter layout: each parameter is cut on one dimension, of size d, into as many chunks as there
// are ranks, each of ceil(d / world_size), as torch.chunk() does: the last ones may be smaller or empty. A
// shard holds the rank's chunk of every parameter, each in the room of a whole chunk, so that all shards are
// alike:
//
//   shard     | chunk of parameter 0 | padding | chunk of parameter 1 | padding | ...
//   gathered  | shard of rank 0 | shard of rank 1 | ...
//
// From what is gathered every parameter is copied to its place in the unsharded buffer, and its gradient to
// the input of the reduce-scatter, in one copy of the ranks with whole chunks and one of the rank with the
// rest.
//
// A chunk of a dimension other than the first is a range of columns in rows that are the dimensions before
// it: of [4096, 11008] cut on dimension 1 by 8 ranks, columns [r * 1376, (r + 1) * 1376) of 4096 rows.
//
// PyTorch's FSDP2 (fully_shard, _fsdp_param.py) and XLA's FSDP via SPMD shard like this.

#include <vector>

#include "shard/unit_layout.h"

namespace fsdp::shard {

class PerParameterLayout final : public UnitLayout {
 public:
  /// Parameters without dimensions are cut as [1].
  PerParameterLayout(const std::vector<Parameter>& parameters, int world_size);

  bool gathers_in_place() const override { return world_size_ == 1; }
  LocalRange local_range(size_t parameter, int rank) const override;
  std::vector<PiecePlace> pieces(size_t parameter) const override;

 private:
  struct Cut {
    int64_t rows = 1;     ///< product of the dimensions before the one that is cut
    int64_t columns = 0;  ///< of the whole parameter
    int64_t chunk = 0;    ///< columns of a rank
    int64_t shard_offset = 0;
  };
  std::vector<Cut> cuts_;  ///< by parameter
};

/// The largest dimension, of equal ones the first; 0 for a parameter without dimensions.
int64_t largest_dimension(const std::vector<int64_t>& shape);

}  // namespace fsdp::shard
