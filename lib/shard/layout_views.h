#pragma once

// Views of tensors by the places that a layout gives (shard/unit_layout.h): what is copied between parameters
// and shards.

#include <ATen/core/Tensor.h>

#include <vector>

#include "shard/unit_layout.h"

namespace fsdp::shard {

/// Views of the same shape of the same elements.
struct LayoutPiece {
  at::Tensor whole;     ///< of the parameter
  at::Tensor gathered;  ///< of the shards one after another
};

/// The pieces that make up a parameter. `whole` is contiguous and has the parameter's shape, or is flat;
/// `gathered` is [gathered_numel]. Their types may differ.
std::vector<LayoutPiece> pieces_of(const UnitLayout& layout, size_t parameter, const at::Tensor& whole,
                                   const at::Tensor& gathered);

/// The parameter's part of `shard`, [shard_numel] of the rank, and the same part of `whole`; both
/// [rows, end - begin].
LayoutPiece local_piece(const UnitLayout& layout, size_t parameter, int rank, const at::Tensor& whole,
                        const at::Tensor& shard);

}  // namespace fsdp::shard
