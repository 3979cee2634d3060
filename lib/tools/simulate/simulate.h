#pragma once

// fsdp-plan --simulate: a step, and a run of such steps, on machines that need not exist. The order is the
// schedule's, the kernels those of the recorded pass. Compute is timed by a calibration or a GPU's data
// sheet, collectives by the backend's algorithm over links of known latency and bandwidth.

#include <optional>
#include <string>

#include "setup/config/config.h"
#include "tools/plan/plan.h"
#include "tools/simulate/calibration.h"
#include "tools/simulate/failures.h"
#include "tools/simulate/replica_exchange.h"
#include "tools/simulate/step_simulation.h"

namespace fsdp::simulate {

/// Share of the rate of memory of a data sheet that kernels reach; assumed. Products reach
/// plan::kEfficiency.
inline constexpr double kMemoryShare = 0.8;
/// Time to launch a kernel on a GPU; assumed.
inline constexpr double kLaunchSeconds = 4e-6;

struct SimulationOptions {
  std::string calibration = {};  ///< a file; empty: the data sheet of PlanOptions::gpu
  std::string network = {};      ///< a preset for the links between hosts; empty: PlanOptions::bandwidth_gbps
  /// Cores of a rank on CPUs; 0: the calibration's, divided by the ranks of a host.
  double cores_per_rank = 0;
  double compute_scale = 1;  ///< factor on the time of all compute
  /// If not 0, compute_scale is chosen so that the simulation has this many tokens per second.
  double measured_tokens_per_second = 0;
  double checkpoint_seconds = 60, restart_seconds = 300;
  double mtbf_hours = 0;  ///< mean time between two faults of a host; 0: no faults
  /// Interval of checkpoints; 0: checkpoint.interval_minutes of the config, or else the best one.
  double checkpoint_interval_minutes = 0;
  Stragglers stragglers = {};
};

/// The config for plan::make_plan(): with the calibration of a CPU a run on CPUs, otherwise unchanged.
config::Config config_for(config::Config config, const SimulationOptions& options);

/// The run with faults.
struct FaultTimes {
  Faults faults = {};
  double interval = 0, best_interval = 0;  ///< seconds; the first from SimulationOptions, or the best
  double effective_share = 0, best_effective_share = 0;
};

struct Simulation {
  Cluster cluster;
  ComputeTable compute;
  KernelSeconds kernels;  ///< kernels of a step, without slowdown by communication
  StepTimes times;        ///< of a step of a replica, with local steps
  ReplicaExchange exchange;
  double step_seconds = 0;  ///< mean over stragglers and exchanges, otherwise times.step
  double tokens_per_second = 0;
  double mfu = 0;  ///< 0: the peak is unknown
  std::optional<FaultTimes> faults;

  /// The largest part of the step, among classes of kernels and obstacles.
  std::string bound() const;
  /// Bytes that each host receives from the others, mean per step.
  double bytes_from_other_hosts() const {
    return times.bytes_from_other_hosts + exchange.bytes_from_other_hosts;
  }
};

/// Requires: `plan` is made from config_for(). Throws Error(kUsage) if a calibration lacks the links of the
/// run's backend, or neither a calibration nor a GPU is given.
Simulation simulate(const plan::Plan& plan, const SimulationOptions& options);

/// Bytes that each host receives from the others in a step, by the algorithms of the cluster's backend.
/// `units` and `device` are those of the run.
double bytes_from_other_hosts(const config::Config& config, const plan::Units& units, const Cluster& cluster,
                              plan::PassDevice device);

/// A report for people.
std::string simulation_text(const plan::Plan& plan, const Simulation& simulation);
/// One JSON object, with a line end.
std::string simulation_json(const plan::Plan& plan, const Simulation& simulation);

}  // namespace fsdp::simulate
