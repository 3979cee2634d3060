#pragma once

// The flat layout: a unit's parameters one after another, padded to a multiple of the number of ranks, and
// cut into equal shards.
//
//   | parameter 0 | parameter 1 |  ...  | padding |        gathered_numel() = world_size * shard_numel()
//   | shard of rank 0 | shard of rank 1 |   ...   |
//
// A rank's shard may begin and end inside a parameter, may hold several, and may hold padding only. The
// shards one after another are the unsharded buffer, so a gather needs no copy.

#include <vector>

#include "shard/unit_layout.h"

namespace fsdp::shard {

class FlatLayout final : public UnitLayout {
 public:
  FlatLayout(const std::vector<Parameter>& parameters, int world_size);

  bool gathers_in_place() const override { return true; }
  /// Has one row.
  LocalRange local_range(size_t parameter, int rank) const override;
  std::vector<PiecePlace> pieces(size_t parameter) const override;
};

}  // namespace fsdp::shard
