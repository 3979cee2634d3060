#include "tools/simulate/simulate.h"

#include <algorithm>
#include <cmath>

#include "base/dtype/dtype.h"
#include "base/util/error.h"
#include "base/util/gpu_data_sheets.h"
#include "tools/plan/local_steps.h"

namespace fsdp::simulate {
namespace {

constexpr double kBytesOfGbit = 1e9 / 8;
constexpr double kHour = 3600, kMinute = 60;
/// Bytes that a kernel moves per byte of its result: it reads two tensors as large.
constexpr double kBytesOfResult = 3;

ComputeTable table_of_gpu(const plan::PlanOptions& machines, const config::Config& config) {
  const util::GpuDataSheet* sheet = util::gpu_data_sheet(machines.gpu);
  if (machines.gpu.empty() || sheet == nullptr) {
    fail(
        ErrorKind::kUsage,
        "`simulate` requires the speed of the machines, but neither `calibration` nor `gpu` is given; add one of them");
  }
  const double memory = kMemoryShare * sheet->memory_bytes_per_second;
  return {.machine = machines.gpu,
          .source = "data sheet",
          .dtype = config.mixed_precision.param_dtype.name(),
          .threads = 0,
          .element_bytes =
              static_cast<double>(util::element_size(util::scalar_type(config.mixed_precision.param_dtype))),
          .products = {},
          .flops_per_second = machines.product_tflops * 1e12,
          .memory_bytes_per_second = memory,
          .elementwise_bytes_per_second = memory / kBytesOfResult,
          .loss_bytes_per_second = memory / kBytesOfResult,
          .optimizer_bytes_per_second = memory,
          .norm_bytes_per_second = memory,
          .host_seconds = kLaunchSeconds};
}

/// Replaces the links between hosts by the preset, if one is given.
void use_preset(NetworkTable& network, const SimulationOptions& options, int64_t ranks_of_host) {
  if (options.network.empty()) return;
  const NetworkPreset& preset = network_preset(options.network);
  network.name = preset.name;
  network.source = preset.source;
  network.between.latency_seconds = preset.latency_seconds;
  network.between.bytes_per_second = kNetworkShare * preset.gbps_of_rank(ranks_of_host) * kBytesOfGbit;
}

NetworkTable network_of_gpus(const plan::PlanOptions& machines, const SimulationOptions& options) {
  const double inside =
      machines.node_bandwidth_gbps > 0 ? machines.node_bandwidth_gbps : machines.bandwidth_gbps;
  NetworkTable network{
      .name = concat(machines.bandwidth_gbps, " Gbit/s"),
      .source = "as given",
      .inside = {.latency_seconds = kNvlinkLatency, .bytes_per_second = kNvlinkShare * inside * kBytesOfGbit},
      .between = {.latency_seconds = kNetworkLatency,
                  .bytes_per_second = kNetworkShare * machines.bandwidth_gbps * kBytesOfGbit},
      .slices = {.latency_seconds = kNetworkLatency,
                 .bytes_per_second = kNetworkShare * machines.dcn_bandwidth_gbps * kBytesOfGbit},
      .base_seconds = kCollectiveLatency,
      .host_bytes_per_second = machines.host_bandwidth_gbps * kBytesOfGbit};
  use_preset(network, options, machines.gpus_per_node);
  // Slices are on different hosts.
  if (network.slices.bytes_per_second > network.between.bytes_per_second) network.slices = network.between;
  return network;
}

NetworkTable measured_network(const Calibration& calibration, comm::Backend backend,
                              const SimulationOptions& options, int64_t ranks_of_host) {
  const auto found = calibration.networks.find(util::name_of(backend));
  if (found == calibration.networks.end()) {
    fail(ErrorKind::kUsage, "`calibration` must have the links of the run's backend, but ",
         options.calibration, " has none of ", util::name_of(backend),
         "; measure them by fsdp-launch ... -- fsdp-train doctor --calibrate FILE comm.backend=",
         util::name_of(backend));
  }
  NetworkTable network = found->second;
  use_preset(network, options, ranks_of_host);
  if (network.slices.bytes_per_second == 0 || !options.network.empty()) network.slices = network.between;
  return network;
}

FaultTimes fault_times(const SimulationOptions& options, double interval_minutes, int64_t hosts,
                       double step_seconds) {
  FaultTimes times{.faults = {.mean_seconds = options.mtbf_hours * kHour / static_cast<double>(hosts),
                              .checkpoint_seconds = options.checkpoint_seconds,
                              .restart_seconds = options.restart_seconds}};
  times.best_interval = best_interval(times.faults, step_seconds);
  times.best_effective_share = effective_share(times.faults, times.best_interval);
  if (options.checkpoint_interval_minutes > 0) interval_minutes = options.checkpoint_interval_minutes;
  times.interval = interval_minutes > 0 ? interval_minutes * kMinute : times.best_interval;
  times.effective_share = effective_share(times.faults, times.interval);
  return times;
}

}  // namespace

config::Config config_for(config::Config config, const SimulationOptions& options) {
  if (options.calibration.empty()) return config;
  const Calibration calibration = read_calibration(options.calibration);
  if (!calibration.compute.is_gpu()) config.training.device = config::DeviceChoice::kCpu;
  return config;
}

std::string Simulation::bound() const {
  std::string name = "nothing";
  double most = 0;
  for (const auto& [kernels_of, text] : enum_names(KernelClass{})) {
    if (kernels[kernels_of] > most) {
      most = kernels[kernels_of];
      name = text;
    }
  }
  for (const auto& [obstacle, text] : enum_names(Obstacle{})) {
    const double seconds = times.exposed_by_obstacle[static_cast<size_t>(obstacle)];
    if (seconds > most) {
      most = seconds;
      name = text;
    }
  }
  return name;
}

Simulation simulate(const plan::Plan& plan, const SimulationOptions& options) {
  const config::Config& config = plan.config;
  const plan::RecordedPass pass = plan::record_pass(config);
  const int64_t world = plan.machines.world_size;
  const int64_t ranks_of_host =
      plan.machines.gpus_per_node >= world ? int64_t{0} : plan.machines.gpus_per_node;
  Simulation simulation;
  Cluster& cluster = simulation.cluster;
  cluster.mesh = plan.mesh;
  cluster.ranks_of_host = ranks_of_host;
  cluster.backend = comm::backend_in_use(config.comm.backend, world, ranks_of_host, pass.on_device());
  if (options.calibration.empty()) {
    simulation.compute = table_of_gpu(plan.machines, config);
    cluster.network = network_of_gpus(plan.machines, options);
    simulation.compute.host_update_seconds = plan.time.update;
  } else {
    const Calibration calibration = read_calibration(options.calibration);
    simulation.compute = calibration.compute;
    const std::string dtype = config.mixed_precision.param_dtype.name();
    if (dtype != calibration.compute.dtype) {
      fail(ErrorKind::kUsage, "`calibration` must be of the type of the run's products, ", dtype, ", but ",
           options.calibration, " is of ", calibration.compute.dtype,
           "; measure again with mixed_precision.param_dtype=", dtype);
    }
    if (world > 1) cluster.network = measured_network(calibration, cluster.backend, options, ranks_of_host);
    if (!simulation.compute.is_gpu()) {
      const int64_t here = ranks_of_host > 0 ? ranks_of_host : world;
      cluster.cores_of_rank = options.cores_per_rank > 0
                                  ? options.cores_per_rank
                                  : calibration.cores_of_host / static_cast<double>(here);
      cluster.threads = simulation.compute.threads;
    }
  }
  if (simulation.compute.is_gpu() != pass.on_device()) {
    fail(ErrorKind::kUsage, "`simulate` requires the speed of what the run computes on, ",
         pass.on_device() ? "GPUs" : "CPUs", " (training.device), but has that of ",
         simulation.compute.machine, "; give a `calibration` of it");
  }
  const double scale_of_table = simulation.compute.scale;
  const auto with_scale = [&](double scale) {
    simulation.compute.scale = scale_of_table * scale;
    return step_program(config, plan.units, pass, simulation.compute);
  };
  // A step is one of a replica.
  Cluster of_step = cluster;
  of_step.mesh = plan::mesh_of_step(config, plan.mesh);
  const auto with_exchange = [&](double step) {
    return step + simulate_exchange(config, plan.units, cluster, step).seconds;
  };
  const StepOptions step_options{.reduce_scatter_group = config.fsdp.reduce_scatter_group};
  double scale = options.compute_scale;
  const auto tokens = static_cast<double>(plan.tokens_per_step());
  if (options.measured_tokens_per_second > 0) {
    const double wanted = tokens / options.measured_tokens_per_second;
    const auto seconds_with = [&](double with) {
      return with_exchange(simulate_step(with_scale(with), plan.units, of_step, step_options).step);
    };
    double low = 1.0 / 64, high = 64;
    if (seconds_with(low) > wanted || seconds_with(high) < wanted) {
      fail(ErrorKind::kUsage, "`measured_tokens_per_second` is ", options.measured_tokens_per_second,
           ", but ",
           seconds_with(low) > wanted ? "communication alone takes longer than that"
                                      : "the machines are more than 64 times as fast",
           "; check machines and network");
    }
    constexpr int kHalvings = 40;
    for (int i = 0; i < kHalvings; ++i) {
      const double middle = std::sqrt(low * high);
      (seconds_with(middle) < wanted ? low : high) = middle;
    }
    scale = std::sqrt(low * high);
  }
  const StepProgram program = with_scale(scale);
  simulation.kernels = program.computed();
  StepOptions recorded = step_options;
  recorded.records = true;
  simulation.times = simulate_step(program, plan.units, of_step, recorded);
  simulation.exchange = simulate_exchange(config, plan.units, cluster, simulation.times.step);
  simulation.step_seconds = with_exchange(simulation.times.step);
  if (options.stragglers.any()) {
    simulation.step_seconds = mean_step_seconds(options.stragglers, cluster.hosts(), [&](double slowness) {
      StepOptions slow = step_options;
      slow.slowness = {std::min(1.0, slowness), slowness};
      return with_exchange(simulate_step(program, plan.units, of_step, slow).step);
    });
  }
  if (simulation.step_seconds > 0) simulation.tokens_per_second = tokens / simulation.step_seconds;
  const double peak = plan.machines.peak_tflops * 1e12 * static_cast<double>(world);
  if (peak > 0) simulation.mfu = simulation.tokens_per_second * plan.flops.model / peak;
  if (options.mtbf_hours > 0) {
    simulation.faults =
        fault_times(options, config.checkpoint.interval_minutes, cluster.hosts(), simulation.step_seconds);
  }
  return simulation;
}

double bytes_from_other_hosts(const config::Config& config, const plan::Units& units, const Cluster& cluster,
                              plan::PassDevice device) {
  const plan::RecordedPass pass = plan::record_pass(config, device);
  // Only the order of the step counts, so that any speed will do.
  const ComputeTable compute{.threads = pass.on_device() ? 0 : 1, .host_seconds = kLaunchSeconds};
  const StepOptions options{.reduce_scatter_group = config.fsdp.reduce_scatter_group};
  return simulate_step(step_program(config, units, pass, compute), units, cluster, options)
      .bytes_from_other_hosts;
}

}  // namespace fsdp::simulate
