#pragma once

// The options that fsdp-plan and fsdp-train take of a plan.

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "setup/config/config.h"
#include "tools/plan/machines.h"
#include "tools/plan/plan.h"

namespace fsdp::apps {

/// What of a plan is asked for on the command line.
struct PlanArguments {
  plan::GivenMachines machines;
  bool json = false;
};

/// Adds them to the program's options. `condition` begins their help texts where they do nothing by
/// themselves: "with --plan: ".
void add_plan_options(CLI::App& app, PlanArguments& arguments, const std::string& condition = "");

/// The plan at these machines; what it says of `machines` names options.
plan::Plan make_plan(const config::Config& config, const PlanArguments& arguments);

/// Their names.
const std::vector<std::string>& plan_option_names();

}  // namespace fsdp::apps
