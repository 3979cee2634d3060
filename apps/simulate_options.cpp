#include "simulate_options.h"

#include <optional>
#include <utility>

#include "base/cli/program.h"
#include "base/cli/usage_error.h"
#include "base/util/error.h"
#include "planning_line.h"
#include "tools/plan/machines.h"
#include "tools/report/timeline_file.h"

namespace fsdp::apps {

void add_simulate_options(CLI::App& app, SimulateArguments& arguments) {
  simulate::SimulationOptions& options = arguments.options;
  CLI::Option* simulates = app.add_flag(
      "--simulate", arguments.is_on,
      "simulate a step instead: latency, links that collectives share, kernels by their class, optimizer and "
      "norm");
  CLI::Option* calibration =
      app.add_option(
             "--calibration", options.calibration,
             "with --simulate: time compute and collectives by this file of fsdp-train doctor --calibrate")
          ->check(cli::not_empty())
          ->excludes("--gpu")
          ->excludes("--efficiency")
          ->excludes("--flops-tflops")
          ->needs(simulates);
  app.add_option(
         "--cores-per-rank", options.cores_per_rank,
         "with --calibration of a CPU: cores that a rank has; default: those of the host, divided by its ranks")
      ->check(cli::above(0))
      ->needs(calibration);
  app.add_option(
         "--network", options.network,
         "with --simulate: the network between hosts, by name; the end of the name is the rate in Gbit/s of a GPU")
      ->check(cli::one_of(simulate::network_names()))
      ->excludes("--bandwidth-gbps")
      ->needs(simulates);
  app.add_option("--compute-scale", options.compute_scale,
                 "with --simulate: all compute takes so many times as long")
      ->capture_default_str()
      ->check(cli::above(0))
      ->needs(simulates);
  CLI::Option* measured =
      app.add_option(
             "--measured-tokens-per-second", options.measured_tokens_per_second,
             "with --simulate: choose --compute-scale so that the simulated speed is this, measured one")
          ->check(cli::above(0))
          ->excludes("--compute-scale")
          ->needs(simulates);
  CLI::Option* timeline =
      app.add_option("--timeline", arguments.timeline,
                     "with --simulate: also write the step as a picture (FILE.svg) or as JSON for "
                     "chrome://tracing and ui.perfetto.dev (FILE.json)")
          ->check(cli::not_empty())
          ->needs(simulates);
  CLI::Option* mtbf =
      app.add_option("--mtbf-hours", options.mtbf_hours,
                     "with --simulate: mean time between two faults of a host; also print the effective "
                     "time of the run and the best interval between checkpoints")
          ->check(cli::above(0))
          ->needs(simulates);
  app.add_option("--checkpoint-seconds", options.checkpoint_seconds,
                 "with --mtbf-hours: for which training stands still at a save")
      ->capture_default_str()
      ->check(cli::above(0))
      ->needs(mtbf);
  app.add_option("--restart-seconds", options.restart_seconds,
                 "with --mtbf-hours: from a fault to the first new step")
      ->capture_default_str()
      ->check(cli::at_least(0))
      ->needs(mtbf);
  app.add_option(
         "--checkpoint-interval-minutes", options.checkpoint_interval_minutes,
         "with --mtbf-hours: of steps between two saves; default: checkpoint.interval_minutes, or the best")
      ->check(cli::above(0))
      ->needs(mtbf);
  app.add_option(
         "--straggler-sigma", options.stragglers.sigma,
         "with --simulate: in each step a host computes exp(SIGMA z) times as long, z from the normal "
         "distribution")
      ->check(cli::at_least(0))
      ->needs(simulates);
  CLI::Option* slow_hosts = app.add_option("--slow-hosts", options.stragglers.slow_share,
                                           "with --simulate: the probability that a host is slow in a step")
                                ->check(cli::between(0, 1))
                                ->needs(simulates);
  CLI::Option* proposes =
      app.add_flag("--propose", arguments.proposes,
                   "with --simulate: compare ways to share the run between hosts by speed, bytes and memory")
          ->excludes(measured)
          ->excludes(timeline)
          ->excludes(mtbf)
          ->needs(simulates);
  app.add_option(
         "--candidate", arguments.candidates,
         "with --propose: another way to compare, 'section.key=value section.key=value ...'; may be given "
         "several times")
      ->allow_extra_args(false)
      ->needs(proposes);
  app.add_option("--slow-host-factor", options.stragglers.slow_factor,
                 "with --slow-hosts: they compute so many times as long")
      ->capture_default_str()
      ->check(cli::at_least(1))
      ->needs(slow_hosts);
}

namespace {

/// The machines with the rate of the network that was named.
plan::GivenMachines with_network(plan::GivenMachines machines, const SimulateArguments& arguments) {
  if (!arguments.options.network.empty()) {
    machines.bandwidth_gbps = simulate::network_preset(arguments.options.network).gbps;
  }
  return machines;
}

}  // namespace

void print_proposals(const simulate::ConfigWith& config_with, PlanArguments planning,
                     const SimulateArguments& arguments) {
  planning.machines = with_network(planning.machines, arguments);
  std::optional<PlanningLine> line(std::in_place, util::progress_on_stderr());
  const auto planner = [&](const config::Config& config) {
    return plan::plan_needs(config, plan::machines_of(config, planning.machines));
  };
  try {
    const plan::Plan as_given = planner(simulate::config_for(config_with({}), arguments.options));
    std::vector<simulate::Candidate> candidates = simulate::built_in_candidates(
        as_given.config, as_given.machines.world_size, as_given.machines.gpus_per_node);
    for (const std::string& text : arguments.candidates) {
      candidates.push_back(simulate::candidate_from_text(text));
    }
    const auto proposals = simulate::propose(candidates, config_with, planner, arguments.options);
    line.reset();
    cli::print(planning.json ? proposals_json(as_given, proposals) : proposals_text(as_given, proposals));
  } catch (const util::Error& error) {
    throw util::Error(error.kind(), cli::with_flags(error.what(), {{"memory_gib", "--gpu-memory-gib"}}));
  }
}

void print_simulation(config::Config config, PlanArguments planning, const SimulateArguments& arguments) {
  report::check_timeline(arguments.timeline);
  planning.machines = with_network(planning.machines, arguments);
  try {
    const plan::Plan plan = make_plan(simulate::config_for(std::move(config), arguments.options), planning);
    const simulate::Simulation simulation = simulate::simulate(plan, arguments.options);
    cli::print(planning.json ? simulation_json(plan, simulation) : simulation_text(plan, simulation));
    constexpr double kMicroseconds = 1e6;
    if (!arguments.timeline.empty()) {
      report::write_timeline(arguments.timeline, comm::tracks_of(simulation.times.events),
                             util::concat("A simulated step of ", plan.machines.world_size,
                                          " ranks: ", plan.config.model.architecture),
                             {.begin_us = 0, .end_us = kMicroseconds * simulation.times.step});
    }
  } catch (const util::Error& error) {
    throw util::Error(error.kind(), cli::with_flags(error.what()));
  }
}

}  // namespace fsdp::apps
