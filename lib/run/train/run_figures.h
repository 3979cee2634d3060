#pragma once

// RunFigures: the numbers of a run that a monitoring system sees, and their names there. docs/monitoring.md
// lists them.

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "base/device/cuda.h"
#include "base/openmetrics/families.h"
#include "run/train/checkpointer.h"
#include "run/train/metrics.h"
#include "run/train/time_left.h"

namespace fsdp::train {

/// Numbers that belong to the whole run, known to its first rank.
struct SharedFigures {
  openmetrics::Labels info = {};  ///< what the run is
  bool is_running = true;         ///< false: no step follows
  int64_t planned_steps = 0;
  int64_t tokens = 0;
  int64_t ranks = 1, replicas = 1;
  int64_t restarts = 0;                                   ///< times that the launcher has restarted the ranks
  std::optional<StepMetrics> line = std::nullopt;         ///< the newest log line; nullopt before the first
  nlohmann::ordered_json validation = nullptr;            ///< the newest numbers of validations and tasks
  std::array<double, TimeLeft::kKinds> pause_seconds{};   ///< indexed by Pause
  std::optional<int64_t> checkpoint_step = std::nullopt;  ///< step of the newest checkpoint
  Checkpointer::SaveCounts saves = {};
};

/// Sums are those since this start of the process.
struct RunFigures {
  openmetrics::Labels labels = {};  ///< labels of every number
  int64_t step = 0;                 ///< steps of the run that are done
  int64_t steps = 0;
  double step_seconds = 0;
  std::optional<double> last_step_at = std::nullopt;  ///< seconds since 1970 at the end of the last step
  double data_wait_seconds = 0;
  std::optional<double> communication_wait_seconds = std::nullopt;  ///< Communicator::waited_seconds()
  std::optional<util::CudaMemory> gpu = std::nullopt;
  std::optional<SharedFigures> shared = std::nullopt;
};

/// Returns the families of the figures, and of the memory of this process at the moment.
std::vector<openmetrics::Family> families_of(const RunFigures& figures);

}  // namespace fsdp::train
