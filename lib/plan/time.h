#pragma once

// How long a step would take on machines of a given speed, and how much of its communication nothing hides.
//
// The model of it, on purpose a simple one:
//   - A stage takes 2 FLOP a weight of its matrices and token forward, 4 backward, and attention 4 * T * D a
//     token forward (T tokens in a row, D wide, the half that causality hides counted) and twice that
//     backward; a recomputed stage runs forward twice. Nothing else takes time: no norms, no optimizer.
//   - A rank computes `flops_per_second` of these, without interruption, and kFloat8Speed times as many in
//     linear layers that multiply in 8 bits (training.float8).
//   - A rank receives at `bytes_per_second`: the other W - 1 shards of a unit in an all-gather, and as much
//   in
//     a reduce-scatter. With g ranks a node (`ranks_of_node`) a rank receives all of them at the speed inside
//     a node, and the g of a node together, at g times `bytes_per_second`, those of the other nodes once; the
//     slower of the two counts. An all-reduce of b bytes over R replicas takes 2 (R - 1) / R * b at
//     `replica_bytes_per_second`. No latency.
//   - Compute and communication each are one stream, in the order and with the waits of the engine: a gather
//   is
//     issued with the compute of the unit before it (with forward_prefetch and backward_prefetch "pre"), and
//     is hidden as far as that computes; a reduction goes beside the backward of the next unit, and at most
//     one is under way. All-reduces of shards follow their reduce-scatter in a stream of their own.
// What compute waits for is the exposed communication.

#include <vector>

#include "config/config.h"
#include "shard/unit_sizes.h"

namespace fsdp::plan {

/// Of products in 8 bits against those in bf16: that of the matrix units of every GPU which has both
/// (NVIDIA's data sheets of H100, L40S and B200, without sparsity). What it takes to scale and to round is
/// not in it.
inline constexpr double kFloat8Speed = 2;

struct MachineSpeed {
  double flops_per_second = 150e12;  ///< of products in the type of compute
  double bytes_per_second = 50e9;
  double replica_bytes_per_second = 50e9;
  int64_t ranks_of_node = 0;         ///< 0: bytes_per_second is the speed between any two
  double node_bytes_per_second = 0;  ///< from ranks of the same node; 0: bytes_per_second
};

/// Seconds of one optimizer step.
struct TimePlan {
  double compute = 0;
  double communication = 0;  ///< of all collectives, one after another
  double exposed = 0;
  double flops = 0;  ///< of this rank, recomputation included

  double step() const { return compute + exposed; }
};

TimePlan plan_time(const config::Config& config, const std::vector<shard::UnitSizes>& units,
                   const MachineSpeed& speed);

}  // namespace fsdp::plan
