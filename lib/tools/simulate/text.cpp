#include "tools/plan/text.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/util/text.h"
#include "tools/simulate/simulate.h"

namespace fsdp::simulate {
namespace {

using nlohmann::ordered_json;

using plan::share;
using util::printed;

std::string duration(double seconds) {
  return seconds >= 600 ? util::human_duration(seconds) : plan::duration(seconds);
}

std::string row(const std::string& name, const std::string& value, const std::string& remark = "") {
  return plan::table_row(name, value, remark);
}

std::string machines_text(const Simulation& simulation) {
  const ComputeTable& compute = simulation.compute;
  const Cluster& cluster = simulation.cluster;
  const NetworkTable& network = cluster.network;
  std::string text = concat("compute    ", compute.machine, " (", compute.source, ")");
  if (!compute.is_gpu())
    text += concat(", ", compute.threads, compute.threads == 1 ? " thread" : " threads", " a rank");
  if (compute.scale != 1) text += printed(", all of it %.3f times as long", compute.scale);
  text += concat("\nnetwork    ", util::name_of(cluster.backend));
  for (const auto& [level, name] : enum_names(Level{})) {
    const Link& link = network.at(level);
    const bool is_used = level == Level::kInside    ? cluster.ranks_of_host != 1
                         : level == Level::kBetween ? cluster.hosts() > 1
                                                    : cluster.mesh.dcn > 1;
    if (!is_used || link.bytes_per_second == 0) continue;
    text += printed(",\n           %.4g GB/s and %.3g us a step ", link.bytes_per_second / 1e9,
                    1e6 * link.latency_seconds) +
            std::string(name);
  }
  if (!network.source.empty()) text += concat("\n           ", network.name, ": ", network.source);
  return text + "\n";
}

std::string memory_text(const plan::Plan& plan) {
  return concat("memory     ", util::human_bytes(plan.memory.device_peak), " of ",
                util::human_bytes(plan.memory_limit()),
                " per rank: ", plan.fits() ? "it fits" : "IT DOES NOT FIT", "\n");
}

std::string faults_text(const Simulation& simulation) {
  if (!simulation.faults) return {};
  const FaultTimes& faults = *simulation.faults;
  std::string text = concat("\nfaults of ", simulation.cluster.hosts(), " hosts, one in ",
                            duration(faults.faults.mean_seconds), "\n");
  text += row("effective time", printed("%.2f%%", 100 * faults.effective_share),
              concat("saving every ", duration(faults.interval)));
  text += row("best interval", duration(faults.best_interval),
              printed("%.2f%% effective", 100 * faults.best_effective_share));
  text += row("tokens/s over the run",
              util::with_commas(std::llround(simulation.tokens_per_second * faults.effective_share)));
  return text;
}

ordered_json json_of(const FaultTimes& faults) {
  return {{"mean_seconds_between_faults", faults.faults.mean_seconds},
          {"checkpoint_seconds", faults.faults.checkpoint_seconds},
          {"restart_seconds", faults.faults.restart_seconds},
          {"interval_seconds", faults.interval},
          {"effective_share", faults.effective_share},
          {"best_interval_seconds", faults.best_interval},
          {"best_effective_share", faults.best_effective_share}};
}

}  // namespace

std::string simulation_text(const plan::Plan& plan, const Simulation& simulation) {
  const StepTimes& times = simulation.times;
  std::string speed = concat(util::with_commas(std::llround(simulation.tokens_per_second)), " tokens/s, ",
                             duration(simulation.step_seconds), " a step");
  if (simulation.mfu > 0) speed += printed(", MFU %.1f%%", 100 * simulation.mfu);
  std::string text = concat("simulated  ", speed, "; most of it: ", simulation.bound(), "\n\n",
                            plan::plan_subject(plan), machines_text(simulation), memory_text(plan), "\n");
  text += "compute of a rank in a step, alone\n";
  const double computed = simulation.kernels.sum();
  for (const auto& [kernels, name] : enum_names(KernelClass{})) {
    const double seconds = simulation.kernels[kernels];
    if (seconds > 0)
      text += row(std::string(name), duration(seconds), printed("%.0f%%", share(seconds, computed)));
  }
  text += row("all", duration(computed));
  text += "\na step\n";
  text += row("computing", duration(times.computing),
              times.computing > computed * 1.0005
                  ? printed("%.1f%% more, beside communication", share(times.computing - computed, computed))
                  : std::string());
  text += row("communication", duration(times.communication));
  if (simulation.cluster.hosts() > 1) {
    text += row("received from other hosts",
                plan::decimal_bytes(std::llround(simulation.bytes_from_other_hosts())),
                concat("by each of ", simulation.cluster.hosts(), " hosts"));
  }
  if (times.copies > 0) text += row("copies to and from host memory", duration(times.copies));
  text += row("exposed, not hidden by compute", duration(times.exposed),
              printed("%.0f%% of the step", share(times.exposed, times.step)));
  for (const auto& [kind, seconds] : times.exposed_by_kind) {
    if (seconds > 0) text += row("  " + kind, duration(seconds));
  }
  for (const auto& [obstacle, name] : enum_names(Obstacle{})) {
    const double seconds = times.exposed_by_obstacle[static_cast<size_t>(obstacle)];
    if (seconds > 0) text += row(concat("  for ", name), duration(seconds));
  }
  text += row("step", duration(times.step));
  if (simulation.exchange.seconds > 0) {
    text += row("waits for other replicas, on average", duration(simulation.exchange.seconds));
  }
  if (simulation.step_seconds != times.step) {
    text +=
        row(simulation.exchange.seconds > 0 ? "step, with exchanges and slow hosts" : "step, with slow hosts",
            duration(simulation.step_seconds), "the mean");
  }
  text += faults_text(simulation);
  if (plan.machines.tokens > 0) {
    const double share = simulation.faults ? simulation.faults->effective_share : 1;
    text +=
        concat("\ntraining on ", util::with_commas(std::llround(plan.machines.tokens)), " tokens takes ",
               printed("%.1f days\n", plan.machines.tokens / (simulation.tokens_per_second * share) / 86400));
  }
  return text;
}

std::string simulation_json(const plan::Plan& plan, const Simulation& simulation) {
  const StepTimes& times = simulation.times;
  ordered_json kernels = ordered_json::object(), kinds = ordered_json::object(),
               obstacles = ordered_json::object();
  for (const auto& [kernel, name] : enum_names(KernelClass{})) {
    kernels[std::string(name)] = simulation.kernels[kernel];
  }
  for (const auto& [kind, seconds] : times.exposed_by_kind) kinds[kind] = seconds;
  for (const auto& [obstacle, name] : enum_names(Obstacle{})) {
    obstacles[std::string(name)] = times.exposed_by_obstacle[static_cast<size_t>(obstacle)];
  }
  const ordered_json json = {
      {"parameters", plan.parameters},
      {"world_size", plan.machines.world_size},
      {"tokens_per_step", plan.tokens_per_step()},
      {"machine", simulation.compute.machine},
      {"backend", util::name_of(simulation.cluster.backend)},
      {"compute_scale", simulation.compute.scale},
      {"step_seconds", simulation.step_seconds},
      {"undisturbed_step_seconds", times.step},
      {"tokens_per_second", simulation.tokens_per_second},
      {"mfu", simulation.mfu > 0 ? ordered_json(simulation.mfu) : ordered_json()},
      {"bound", simulation.bound()},
      {"kernel_seconds", std::move(kernels)},
      {"computing_seconds", times.computing},
      {"copy_seconds", times.copies},
      {"communication_seconds", times.communication},
      {"exposed_seconds", times.exposed},
      {"bytes_from_other_hosts", std::llround(simulation.bytes_from_other_hosts())},
      {"exposed_seconds_by_kind", std::move(kinds)},
      {"exposed_seconds_by_obstacle", std::move(obstacles)},
      {"model_tflops_per_rank", plan.flops.model * simulation.tokens_per_second / 1e12 / plan.ranks()},
      {"hardware_tflops_per_rank", plan.flops.hardware * simulation.tokens_per_second / 1e12 / plan.ranks()},
      {"training_seconds", plan.machines.tokens > 0
                               ? ordered_json(plan.machines.tokens /
                                              (simulation.tokens_per_second *
                                               (simulation.faults ? simulation.faults->effective_share : 1)))
                               : ordered_json()},
      {"fits", plan.fits()},
      {"faults", simulation.faults ? json_of(*simulation.faults) : ordered_json()}};
  return json.dump(2) + "\n";
}

}  // namespace fsdp::simulate
