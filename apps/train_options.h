#pragma once

// The options of fsdp-train, and its actions: each is a command, and an option beside a config as well.

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "plan_options.h"

namespace fsdp::apps {

struct TrainArguments {
  std::string command;  ///< command line as a shell takes it
  std::string config_path;
  std::vector<std::string> overrides, plugins;
  bool print_config = false;
  bool explain_step = false;
  bool all_units = false;
  std::string timeline;  ///< file of the explained step; empty: none
  bool profile_start = false;
  bool reference_log_probs = false;
  bool plan = false;
  bool dry_run = false;
  std::string evaluate;             ///< weights to validate; empty: the run is trained
  std::vector<std::string> report;  ///< folders of the runs to report
  std::string report_output;        ///< file of the report; empty: the default
  std::string watch;                ///< folder of the run to watch; empty: none
  PlanArguments planning;           ///< options of a plan and a dry run; --json is one of all actions

  /// Whether the program only reads folders of runs, which needs no config.
  bool looks_at_runs() const { return !report.empty() || !watch.empty(); }
  /// Whether the model of the config is computed. Only then is a plug-in loaded that the config names.
  bool computes() const { return !looks_at_runs() && !print_config && !plan; }
  /// Whether the program trains, and so saves before it ends. Otherwise a signal ends it like any program.
  bool trains() const {
    return computes() && !dry_run && !explain_step && !profile_start && !reference_log_probs &&
           evaluate.empty();
  }
};

/// Adds config, overrides and the options. The arguments must outlive the app.
void add_train_options(CLI::App& app, TrainArguments& arguments);

/// Adds the actions as commands (fsdp-train plan CONFIG), which set the same arguments.
void add_train_actions(CLI::App& app, TrainArguments& arguments);

/// Throws Error(kUsage) for words and options before a command or of no use to the action, and for an action
/// or a run without its words.
void check_train_words(const CLI::App& app, const TrainArguments& arguments);

}  // namespace fsdp::apps
