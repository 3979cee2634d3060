#pragma once

// The options of a simulation, which fsdp-plan has.

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "plan_options.h"
#include "tools/simulate/proposals.h"
#include "tools/simulate/simulate.h"

namespace fsdp::apps {

struct SimulateArguments {
  bool is_on = false;
  bool proposes = false;                     ///< whether to compare ways to train
  std::vector<std::string> candidates = {};  ///< further ways, each as overrides in one text
  std::string timeline = {};                 ///< file of the timeline; empty: none
  simulate::SimulationOptions options = {};
};

/// Adds the options behind those of the plan.
void add_simulate_options(CLI::App& app, SimulateArguments& arguments);

/// Prints the simulation, as text or JSON, and writes the timeline.
void print_simulation(config::Config config, PlanArguments planning, const SimulateArguments& arguments);

/// Prints a comparison of ways to train the config that `config_with` returns, as text or JSON.
void print_proposals(const simulate::ConfigWith& config_with, PlanArguments planning,
                     const SimulateArguments& arguments);

}  // namespace fsdp::apps
