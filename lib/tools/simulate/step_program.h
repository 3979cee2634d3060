#pragma once

// StepProgram: the operations of a rank in a step, in order: the schedule's commands (shard/units/schedule.h)
// as the engine receives them, and between them the compute of the recorded pass (tools/plan/recorded_pass.h)
// in seconds. The simulation executes it (tools/simulate/step_simulation.h).

#include <cstdint>
#include <string>
#include <vector>

#include "setup/config/config.h"
#include "shard/units/schedule.h"
#include "shard/units/unit_sizes.h"
#include "tools/plan/recorded_pass.h"
#include "tools/simulate/collective_cost.h"
#include "tools/simulate/compute_table.h"

namespace fsdp::simulate {

enum class OperationKind {
  kCompute,
  kCommand,      ///< a command of the schedule
  kSend,         ///< begins a collective inside a layer
  kCopy,         ///< begins a copy of activations between the device and host memory
  kWaitForSend,  ///< waits until that collective or copy has ended
  kCollective,   ///< a collective of all ranks, which the rank waits for
  kBegin,        ///< begin of the compute of a unit's stage
  kEnd,
};

struct Operation {
  OperationKind kind = OperationKind::kCompute;
  KernelSeconds seconds = {};      ///< kCompute
  shard::Command command = {};     ///< kCommand
  int64_t number = 0;              ///< kSend, kCopy, kWaitForSend: which one; kBegin, kEnd: the unit
  double bytes = 0;                ///< kSend: received; kCopy, kCollective: the payload
  CollectiveKind collective = {};  ///< kCollective
  std::string what = {};           ///< kCollective: its purpose; kBegin: "forward", "recompute" or "backward"
};

/// A micro-batch, or the end of the step.
struct Section {
  std::vector<Operation> operations = {};
  double times = 1;  ///< number of repetitions
};

struct StepProgram {
  std::vector<Section> sections;

  /// Compute of all operations, without waiting.
  KernelSeconds computed() const;
};

/// The program of a step after the first, when the order of units is known. `pass` must be the config's.
StepProgram step_program(const config::Config& config, const plan::Units& units,
                         const plan::RecordedPass& pass, const ComputeTable& table);

/// Bytes that the optimizer reads and writes for a unit: weights and states are read and written, the
/// gradient is read.
double update_bytes(const config::Config& config, const shard::UnitSizes& unit);

}  // namespace fsdp::simulate
