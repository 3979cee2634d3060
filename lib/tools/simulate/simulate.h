#pragma once

// fsdp-plan --simulate: a step, and a run of such steps, on machines that need not exist. The order is the schedule's, the
// kernels those of the recorded pass; compute is timed by a calibration or a GPU's data sheet, collectives by the
// algorithm of the backend over links of set latency and bandwidth.

#include <cstdint>
#include <optional>
#include <string>

#include "setup/config/config.h"
#include "tools/plan/plan.h"
#include "tools/simulate/calibration.h"
#include "tools/simulate/failures.h"
#include "tools/simulate/step_simulation.h"

namespace fsdp::simulate {

/// The share of the data sheet's rate that large products reach, where nothing says otherwise; all else is timed by
/// itself, so it is more than plan::kEfficiency. Assumed, as is the share of the rate of memory.
inline constexpr double kProductShare = 0.7, kMemoryShare = 0.8;
/// To launch a kernel on a GPU; assumed.
inline constexpr double kLaunchSeconds = 4e-6;

struct SimulationOptions {
  std::string calibration = {};  ///< a file; empty: the data sheet of PlanOptions::gpu
  std::string network = {};      ///< a preset for the links between hosts; empty: PlanOptions::bandwidth_gbps
  double cores_per_rank = 0;     ///< on CPUs; 0: those of the calibration, divided by the ranks of a host
  double compute_scale = 1;      ///< all compute takes so many times as long
  /// The compute_scale with which the simulated tokens per second are these; 0: as given.
  double measured_tokens_per_second = 0;
  double checkpoint_seconds = 60, restart_seconds = 300;
  double mtbf_hours = 0;                   ///< between two faults of a host; 0: none
  double checkpoint_interval_minutes = 0;  ///< 0: the best
  Stragglers stragglers = {};
};

/// With the calibration of a CPU, the config of a run there; else the same. For plan::make_plan().
config::Config config_for(config::Config config, const SimulationOptions& options);

/// What faults make of the run.
struct FaultTimes {
  Faults faults = {};
  double interval = 0, best_interval = 0;  ///< seconds; that of SimulationOptions, or the best
  double effective_share = 0, best_effective_share = 0;
};

struct Simulation {
  Cluster cluster;
  ComputeTable compute;
  KernelSeconds kernels;  ///< of a step, without what slows them down
  StepTimes times;
  double step_seconds = 0;  ///< with stragglers the mean, else times.step
  double tokens_per_second = 0;
  double mfu = 0;  ///< 0: the peak is not known
  std::optional<FaultTimes> faults;

  /// What takes most of the step: the largest of the kernels' classes and of the obstacles.
  std::string bound() const;
};

/// `plan` is that of config_for(). Throws Error(kUsage) for a calibration without the links of the run's backend, where
/// neither a calibration nor a GPU is given.
Simulation simulate(const plan::Plan& plan, const SimulationOptions& options);

/// For people.
std::string simulation_text(const plan::Plan& plan, const Simulation& simulation);
/// One JSON object, with a line end.
std::string simulation_json(const plan::Plan& plan, const Simulation& simulation);

}  // namespace fsdp::simulate
