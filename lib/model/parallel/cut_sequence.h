#pragma once

// Sequences that are cut over the ranks of a context group.
//
// A sequence of T tokens has 2 * degree chunks of equal length, of which rank c has chunk c and chunk 2 *
// degree - 1 - c. In causal attention early tokens attend to few keys and late tokens to many, so this gives
// all ranks the same work (Llama Team: The Llama 3 Herd of Models, 2024, section 3.3.2):
//
//   degree 2       chunk    0   1   2   3
//                  rank     0   1   1   0

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>

#include "comm/api/communicator.h"
#include "comm/options/options.h"
#include "model/kernels/rows.h"

namespace fsdp::parallel {

/// This rank's part of each sequence.
struct CutSequence {
  int rank = 0, degree = 1;
  /// Group of `degree` ranks, for attention; null if the model has no attention.
  std::shared_ptr<comm::Communicator> group = nullptr;
  comm::ContextAttention attention = comm::ContextAttention::kRing;

  /// Returns the two chunks of a rank, in the order of the tokens.
  std::array<int64_t, 2> chunks_of(int64_t of_rank) const { return {of_rank, 2 * degree - 1 - of_rank}; }
  std::array<int64_t, 2> chunks() const { return chunks_of(rank); }

  /// Returns this rank's part of `whole`, with all tokens along a dimension. Requires: 2 * degree divides T.
  at::Tensor part_of(const at::Tensor& whole, int64_t dimension) const;
  /// Returns the positions in whole sequences of `count` of this rank's `tokens` tokens, from `first` on.
  /// `count` may be one of several equal parts of `tokens`.
  kernels::RowPieces places(int64_t first, int64_t count, int64_t tokens) const;
};

}  // namespace fsdp::parallel
