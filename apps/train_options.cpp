#include "train_options.h"

#include <algorithm>

#include "base/cli/program.h"
#include "base/cli/usage_error.h"
#include "base/util/error.h"
#include "base/util/text.h"
#include "plugin_option.h"

namespace fsdp::apps {
namespace {

using util::ErrorKind;

constexpr const char* kAboutEvaluate =
    "print loss, perplexity and bits per byte of data.validation for these weights, and exit: a "
    "checkpoint's folder, a run's (its newest checkpoint; FOLDER/best: its best), a safetensors file or a "
    "Hugging Face folder. Writes no file";
constexpr const char* kAboutReport =
    "write report.html into this folder of a run, which may still be running, print its path, "
    "and exit: curves, config, environment, and the picture of a step if "
    "logging.trace_communication was on. With several folders: write comparison.html into the "
    "working directory, with the curves of all runs and the keys in which they differ";
constexpr const char* kAboutWatch =
    "show this folder of a run in the terminal until the run ends or q is pressed: progress, curve of "
    "the loss, speed, memory, the processes on this host, validations and checkpoints. Prints this "
    "once if the output is not a terminal";
constexpr const char* kAboutPlan =
    "print what a rank of the run would need, computed from the config alone: memory, communication, time, "
    "the largest micro-batch that fits, and what to change if none does. Needs no data, no other process "
    "and little memory. The program fsdp-plan prints the same";
constexpr const char* kAboutDryRun =
    "train some steps on random tokens as rank 0 of the world, without the other ranks, and print the "
    "plan beside what was measured. Needs the memory of one rank on training.device, "
    "reads no data and writes no file";
constexpr const char* kAboutExplain =
    "train two steps from the initial weights and print what happened in the second: a timeline of rank 0, "
    "and communication and memory against their formula. Reads no checkpoint and, without --timeline, "
    "writes no file";
constexpr const char* kAboutTimeline =
    "also write what rank 0 did in that step to this file: compute, communication, waits and live memory, as "
    "a picture (FILE.svg) or as JSON for chrome://tracing and ui.perfetto.dev (FILE.json)";
constexpr const char* kAboutProfile =
    "train one step from the first weights, or from the checkpoint that checkpoint.resume names, and "
    "print where the time from the start of rank 0, or of fsdp-launch, to the end of the step went. "
    "Leaves the run's folder alone. With --json, prints one JSON object";
constexpr const char* kAboutReferences =
    "compute the log-probabilities that the reference of training.objective gives to the answers in data.train and "
    "data.validation, or a teacher's likeliest tokens in data.train, and keep them beside these files, for "
    "preference.reference or distillation.teacher = \"stored\"";
constexpr const char* kAboutPrint =
    "print every key with its value and the origin of the value (default, line of "
    "the file, command line), and exit";

void add_config(CLI::App& app, TrainArguments& arguments) {
  app.add_option("config", arguments.config_path, "TOML file")->check(cli::not_empty());
}

void add_overrides(CLI::App& app, TrainArguments& arguments) {
  app.add_option("overrides", arguments.overrides, "section.key=value, overrides the file");
}

/// Adds an action that takes a config, with the words between the config and the overrides.
CLI::App* add_action(CLI::App& app, TrainArguments& arguments, const std::string& name,
                     const std::string& about) {
  CLI::App* command = app.add_subcommand(name, about);
  add_config(*command, arguments);
  add_overrides(*command, arguments);
  add_plugin_option(*command, arguments.plugins, "");
  return command;
}

/// The name in lower case with dashes of an option of the program that a command replaces: "--dry-run".
const CLI::App* given_command(const CLI::App& app) {
  const auto commands = app.get_subcommands();
  return commands.empty() ? nullptr : commands.front();
}

/// Whether this is one of add_train_actions(), which need what the program's options would.
bool is_action(const std::string& name) {
  static const std::vector<std::string> names = {
      "report",      "watch",        "evaluate",      "plan",
      "dry-run",     "explain-step", "profile-start", "reference-log-probs",
      "print-config"};
  return std::ranges::find(names, name) != names.end();
}

void check_words_before(const CLI::App& app, const CLI::App& command) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() == 0 || option->get_name() == "--plugin") continue;
    if (option->get_positional()) {
      util::fail(ErrorKind::kUsage, "expected the command ", command.get_name(),
                 " as the first argument; found it after \"", option->results().front(),
                 "\"; for a config with the name of a command, write ./NAME");
    }
    util::fail(ErrorKind::kUsage, "expected options after the command ", command.get_name(), "; found ",
               option->get_name(), " before it; write it behind, or leave one of the two out");
  }
}

void check_words_of(const CLI::App& action) {
  for (const CLI::Option* option : action.get_options()) {
    if (!option->get_positional() || option->count() > 0 || option->get_name() == "overrides") continue;
    util::fail(ErrorKind::kUsage, "command line: expected fsdp-train ", action.get_name(), " with ",
               option->get_description(), "; found none; see fsdp-train ", action.get_name(), " --help");
  }
}

void check_that_a_config_is_named(const CLI::App& app, const std::string& word) {
  const std::string commands = util::join(cli::command_names(app), ", ");
  if (word.empty()) {
    util::fail(ErrorKind::kUsage, "command line: expected a config (a TOML file) or a command (", commands,
               "); found neither; fsdp-train init quickstart --output config.toml writes a first config");
  }
  const std::string command = cli::misspelt_command(app, word);
  if (command.empty()) return;
  util::fail(ErrorKind::kUsage, "command line: expected a config (a TOML file) or a command (", commands,
             "); found ", util::shell_word(word), ", which is neither; did you mean ", command, "?");
}

void add_json(CLI::App& command, TrainArguments& arguments) {
  command.add_flag("--json", arguments.planning.json, "print one JSON object instead of text");
}

/// Whether an action other than a plan, given as an option, can print JSON.
bool prints_json(const TrainArguments& arguments) {
  return arguments.profile_start || arguments.explain_step || arguments.print_config ||
         !arguments.evaluate.empty() || !arguments.watch.empty();
}

/// Refuses options of a plan without --plan or --dry-run.
void check_plan_options(const CLI::App& app, const TrainArguments& arguments) {
  if (arguments.plan || arguments.dry_run) return;
  for (const std::string& name : plan_option_names()) {
    if (app.count(name) == 0 || (name == "--json" && prints_json(arguments))) continue;
    util::fail(ErrorKind::kUsage, name, ": expected --plan or --dry-run as well; found neither; add one");
  }
}

}  // namespace

void add_train_options(CLI::App& app, TrainArguments& arguments) {
  add_config(app, arguments);
  CLI::Option* config = app.get_option("config");
  add_overrides(app, arguments);
  add_plugin_option(
      app, arguments.plugins,
      "; those that the config names in run.plugins are loaded when its model is computed, but not "
      "by --help, --print-config, --plan and doctor");
  app.add_flag("--print-config", arguments.print_config, kAboutPrint);
  CLI::Option* explain = app.add_flag("--explain-step", arguments.explain_step, kAboutExplain);
  app.add_flag("--all-units", arguments.all_units, "with --explain-step: every event of every unit")
      ->needs(explain);
  app.add_option("--timeline", arguments.timeline, util::concat("with --explain-step: ", kAboutTimeline))
      ->check(cli::not_empty())
      ->needs(explain);
  app.add_option("--evaluate", arguments.evaluate, kAboutEvaluate)
      ->check(cli::not_empty())
      ->excludes(explain);
  CLI::Option* report = app.add_option("--report", arguments.report, kAboutReport)
                            ->check(cli::not_empty())
                            ->excludes(config)
                            ->excludes(explain);
  app.add_option("--output", arguments.report_output, "with --report: write this file instead")
      ->check(cli::not_empty())
      ->needs(report);
  app.add_option("--watch", arguments.watch, kAboutWatch)
      ->check(cli::not_empty())
      ->excludes(config)
      ->excludes(explain)
      ->excludes(report);
  CLI::Option* profile = app.add_flag("--profile-start", arguments.profile_start, kAboutProfile);
  CLI::Option* references =
      app.add_flag("--reference-log-probs", arguments.reference_log_probs, kAboutReferences)
          ->excludes(explain)
          ->excludes(report)
          ->excludes(profile);
  references->excludes(app.get_option("--evaluate"))->excludes(app.get_option("--watch"));
  CLI::Option* plan = app.add_flag("--plan", arguments.plan, kAboutPlan);
  CLI::Option* dry_run = app.add_flag("--dry-run", arguments.dry_run, kAboutDryRun);
  plan->excludes(dry_run)->excludes(references);
  dry_run->excludes(references);
  add_plan_options(app, arguments.planning, "with --plan or --dry-run: ");
  app.get_option("--json")->description(
      "with --plan, --dry-run, --explain-step, --profile-start, --evaluate, --watch or --print-config: print one "
      "JSON object instead of text");
  for (const char* other :
       {"--print-config", "--explain-step", "--evaluate", "--report", "--watch", "--plan", "--dry-run"}) {
    profile->excludes(app.get_option(other));
  }
}

void add_train_actions(CLI::App& app, TrainArguments& arguments) {
  for (const auto& [name, chosen, about] :
       {std::tuple{"plan", &arguments.plan, kAboutPlan}, {"dry-run", &arguments.dry_run, kAboutDryRun}}) {
    CLI::App* command = add_action(app, arguments, name, about);
    add_plan_options(*command, arguments.planning);
    command->callback([chosen = chosen] { *chosen = true; });
  }

  CLI::App* explain = add_action(app, arguments, "explain-step", kAboutExplain);
  explain->add_flag("--all-units", arguments.all_units, "every event of every unit");
  explain->add_option("--timeline", arguments.timeline, kAboutTimeline)->check(cli::not_empty());
  add_json(*explain, arguments);
  explain->callback([&arguments] { arguments.explain_step = true; });

  CLI::App* profile = add_action(app, arguments, "profile-start", kAboutProfile);
  add_json(*profile, arguments);
  profile->callback([&arguments] { arguments.profile_start = true; });

  CLI::App* references = add_action(app, arguments, "reference-log-probs", kAboutReferences);
  references->callback([&arguments] { arguments.reference_log_probs = true; });

  CLI::App* print = add_action(app, arguments, "print-config", kAboutPrint);
  add_json(*print, arguments);
  print->callback([&arguments] { arguments.print_config = true; });

  CLI::App* evaluate = app.add_subcommand("evaluate", kAboutEvaluate);
  add_config(*evaluate, arguments);
  evaluate->add_option("weights", arguments.evaluate, "weights")->check(cli::not_empty());
  add_overrides(*evaluate, arguments);
  add_json(*evaluate, arguments);
  add_plugin_option(*evaluate, arguments.plugins, "");

  CLI::App* report = app.add_subcommand("report", kAboutReport);
  report->add_option("runs", arguments.report, "folders of runs")->check(cli::not_empty());
  report->add_option("--output", arguments.report_output, "write this file instead")->check(cli::not_empty());

  CLI::App* watch = app.add_subcommand("watch", kAboutWatch);
  watch->add_option("run", arguments.watch, "the folder of a run")->check(cli::not_empty());
  watch->add_flag("--json", arguments.planning.json, "print the state once, as one JSON object");
}

void check_train_words(const CLI::App& app, const TrainArguments& arguments) {
  if (const CLI::App* command = given_command(app)) {
    check_words_before(app, *command);
    if (is_action(command->get_name())) check_words_of(*command);
    return;
  }
  if (!arguments.looks_at_runs()) check_that_a_config_is_named(app, arguments.config_path);
  check_plan_options(app, arguments);
}

}  // namespace fsdp::apps
