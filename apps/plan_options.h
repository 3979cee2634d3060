#pragma once

// The options of a plan, which fsdp-plan and fsdp-train have in common.

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "setup/config/config.h"
#include "tools/plan/machines.h"
#include "tools/plan/plan.h"

namespace fsdp::apps {

/// The values of a plan's options on the command line.
struct PlanArguments {
  plan::GivenMachines machines;
  bool json = false;
};

/// Adds the plan's options to the program's. `condition` begins their help texts if they do nothing by
/// themselves: "with --plan: ".
void add_plan_options(CLI::App& app, PlanArguments& arguments, const std::string& condition = "");

/// Makes the plan for these machines. Errors about `machines` name the options.
plan::Plan make_plan(const config::Config& config, const PlanArguments& arguments);

/// Returns the names of the plan's options.
const std::vector<std::string>& plan_option_names();

}  // namespace fsdp::apps
