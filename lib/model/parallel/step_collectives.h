#pragma once

// Collectives that tensor parallelism needs for a micro-batch of a decoder of lib/model/nn, and their bytes.

#include <cstdint>

namespace fsdp::parallel {

/// A micro-batch of one rank's group.
struct DecoderStep {
  int64_t ranks = 1;
  int64_t layers = 0, hidden = 0;
  int64_t rows = 0, tokens = 0;
  int64_t element_bytes = 4;  ///< bytes of an element of an activation
  int64_t loss_chunks = 1;    ///< kernels::cross_entropy_chunk_rows() of ceil(vocabulary / ranks)
  bool sequence_parallel = true;
  bool recomputes_blocks = false;
};

struct CollectiveSum {
  int64_t calls = 0;
  int64_t bytes = 0;  ///< payload over all calls
  bool operator==(const CollectiveSum&) const = default;
};
struct StepCollectives {
  CollectiveSum all_gather, reduce_scatter, all_reduce;
  bool operator==(const StepCollectives&) const = default;
};

/// Returns the collectives of forward with the loss, and backward.
///
/// S = rows * tokens * hidden * element_bytes is the activation between two blocks, for M ranks and L layers.
/// Each block has two regions (attention, feed-forward), the embedding leaves one and the head enters one:
///
///                          calls                            bytes of a call (a rank's payload, as in traces)
///   sequence parallelism
///     all-gathers          forward: 2 L + 1                 S / M
///                          backward: 2 L + 1                S / M
///     reduce-scatters      forward: 2 L + 1                 S / M
///                          backward: 2 L + 1                S / M
///   otherwise
///     all-reduces          forward: 2 L + 1                 S
///                          backward: 2 L + 1                S
///   the loss, both         all-gathers: loss_chunks         32 for each row of the chunk
///   recomputed blocks      2 L more all-gathers and reduce-scatters, or all-reduces
///
/// On the network, an all-gather or reduce-scatter of S / M sends S (M - 1) / M from each rank, and an
/// all-reduce of S twice that. Both forms therefore send the same number of bytes.
inline StepCollectives step_collectives(const DecoderStep& step) {
  StepCollectives sums;
  if (step.ranks == 1) return sums;
  constexpr int64_t kStatisticsBytes = 32;  // RowStatistics of model/kernels/rows.h
  const int64_t whole = step.rows * step.tokens * step.hidden * step.element_bytes;
  const int64_t calls = 2 * (2 * step.layers + 1) + (step.recomputes_blocks ? 2 * step.layers : 0);
  if (step.sequence_parallel) {
    sums.all_gather = sums.reduce_scatter = {calls, calls * (whole / step.ranks)};
  } else {
    sums.all_reduce = {calls, calls * whole};
  }
  sums.all_gather.calls += step.loss_chunks;
  sums.all_gather.bytes += kStatisticsBytes * step.rows * step.tokens;
  return sums;
}

}  // namespace fsdp::parallel
