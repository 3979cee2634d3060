#pragma once

// The options that fsdp-plan takes of a simulation.

#include <CLI/CLI.hpp>
#include <string>

#include "plan_options.h"
#include "tools/simulate/simulate.h"

namespace fsdp::apps {

struct SimulateArguments {
  bool is_on = false;
  std::string timeline = {};  ///< a file; empty: none
  simulate::SimulationOptions options = {};
};

/// Adds them behind those of the plan.
void add_simulate_options(CLI::App& app, SimulateArguments& arguments);

/// Prints what is asked for, as text or JSON, and writes the timeline.
void print_simulation(config::Config config, PlanArguments planning, const SimulateArguments& arguments);

}  // namespace fsdp::apps
