#pragma once

// Views of the places that a layout (shard/units/unit_layout.h) gives to parameters, for copies between
// parameters and shards.

#include <ATen/core/Tensor.h>

#include <vector>

#include "shard/units/unit_layout.h"

namespace fsdp::shard {

/// Two views, of equal shape, of the same elements.
struct LayoutPiece {
  at::Tensor whole;     ///< view of the parameter
  at::Tensor gathered;  ///< view of the gathered shards
};

/// Returns the pieces that make up a parameter. `whole` is contiguous and has the parameter's number of
/// elements; `gathered` is [gathered_numel]. Their types may differ.
std::vector<LayoutPiece> pieces_of(const UnitLayout& layout, size_t parameter, const at::Tensor& whole,
                                   const at::Tensor& gathered);

/// Returns the parameter in `unsharded` [unsharded_numel], with its shape.
at::Tensor whole_view(const UnitLayout& layout, size_t parameter, const at::Tensor& unsharded);

/// Returns a rank's part of a parameter in `whole` and in `shard`, [shard_numel] of that rank. Both views are
/// [rows, end - begin].
LayoutPiece local_piece(const UnitLayout& layout, size_t parameter, int rank, const at::Tensor& whole,
                        const at::Tensor& shard);

}  // namespace fsdp::shard
