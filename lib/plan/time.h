#pragma once

// How long a step would take on machines of a given speed, and how much of its communication nothing hides.
//
// The model of it, on purpose a simple one:
//   - A stage takes 2 FLOP a weight of its matrices and token forward, 4 backward, and attention 4 * T * D a
//     token forward (T tokens in a row, D wide, the half that causality hides counted) and twice that
//     backward; a recomputed stage runs forward twice. Nothing else takes time: no norms, no optimizer.
//   - A rank computes `flops_per_second` of these, without interruption, and kFloat8Speed times as many in
//     linear layers that multiply in 8 bits (training.float8).
//   - Collectives wait and are waited for as the engine's schedule says (plan/step_clock.h). No latency.
// What compute waits for is the exposed communication.

#include <vector>

#include "config/config.h"
#include "plan/recorded_pass.h"
#include "plan/step_clock.h"
#include "shard/unit_sizes.h"

namespace fsdp::plan {

/// Of products in 8 bits against those in bf16: that of the matrix units of every GPU which has both
/// (NVIDIA's data sheets of H100, L40S and B200, without sparsity). What it takes to scale and to round is
/// not in it.
inline constexpr double kFloat8Speed = 2;

/// Seconds of one optimizer step.
struct TimePlan {
  double compute = 0;
  double communication = 0;  ///< of all collectives, one after another
  double exposed = 0;
  double flops = 0;            ///< of this rank, recomputation included
  double flops_in_float8 = 0;  ///< of these

  double step() const { return compute + exposed; }
};

/// `pass` is the config's.
TimePlan plan_time(const config::Config& config, const std::vector<shard::UnitSizes>& units,
                   const MachineSpeed& speed, const RecordedPass& pass);
inline TimePlan plan_time(const config::Config& config, const std::vector<shard::UnitSizes>& units,
                          const MachineSpeed& speed) {
  return plan_time(config, units, speed, record_pass(config));
}

}  // namespace fsdp::plan
