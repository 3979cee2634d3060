// fsdp-train CONFIG.toml [section.key=value ...]: one process of a training run.

#include <CLI/CLI.hpp>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/cli/program.h"
#include "base/cli/usage_error.h"
#include "base/tensor/mapped_allocator.h"
#include "base/util/error.h"
#include "base/util/file.h"
#include "base/util/log.h"
#include "base/util/start_clock.h"
#include "base/util/stop_signal.h"
#include "base/util/text.h"
#include "comm/api/launch_environment.h"
#include "comm/backends/make_communicator.h"
#include "comm/mpi/mpi_run.h"
#include "config_words.h"
#include "data/tokens/lost_pages.h"
#include "early_environment.h"
#include "plan_options.h"
#include "plugin_option.h"
#include "run/replicas/replicas.h"
#include "run/train/device.h"
#include "run/train/dry_run.h"
#include "run/train/evaluate.h"
#include "run/train/explain_step.h"
#include "run/train/peer_standings.h"
#include "run/train/profile_start.h"
#include "run/train/trainer.h"
#include "run/train/watchdog.h"
#include "setup/config/foreign_names.h"
#include "setup/config/load.h"
#include "setup/config/print.h"
#include "setup/config/value.h"
#include "setup/plugin/load.h"
#include "tools/launch/worker_channel.h"
#include "tools/plan/text.h"
#include "tools/report/report.h"
#include "tools/report/watch.h"
#include "train_commands.h"

namespace {

struct Arguments {
  std::string command;  ///< command line as a shell takes it
  std::string config_path;
  std::vector<std::string> overrides, plugins;
  bool print_config = false;
  bool explain_step = false;
  bool all_units = false;
  std::string timeline;  ///< file of the explained step; empty: none
  bool profile_start = false;
  bool plan = false;
  bool dry_run = false;
  std::string evaluate;                ///< weights to validate; empty: the run is trained
  std::vector<std::string> report;     ///< folders of the runs to report
  std::string report_output;           ///< file of the report; empty: the default
  std::string watch;                   ///< folder of the run to watch; empty: none
  fsdp::apps::PlanArguments planning;  ///< options of --plan and --dry-run
};

using namespace fsdp;

void print(const train::RunSummary& summary, const config::Config& config,
           const std::string& resume_command) {
  std::cout << (summary.stopped       ? "stopped on request at step "
                : summary.ended_early ? "ended early at step "
                                      : "finished at step ")
            << summary.step;
  if (summary.loss) std::cout << ", loss " << util::fixed(*summary.loss, 4);
  if (summary.validation_loss) std::cout << ", validation loss " << util::fixed(*summary.validation_loss, 4);
  if (summary.best && summary.best->step != summary.step) {
    std::cout << ", best " << train::words_of(config.evaluation.best_metric) << " "
              << util::fixed(summary.best->value, 4) << " at step " << summary.best->step;
  }
  if (!summary.last_checkpoint.empty()) std::cout << ", saved " << summary.last_checkpoint.string();
  if (summary.stopped && !summary.last_checkpoint.empty()) {
    std::cout << "; under the same launcher, this command resumes from there: " << resume_command;
  }
  std::cout << std::endl;
}

std::shared_ptr<comm::Communicator> connect(const config::Config& config,
                                            const comm::LaunchEnvironment& environment,
                                            std::shared_ptr<comm::Activity> activity = nullptr) {
  const c10::Device device = train::prepare_device(config.training, environment.local_rank,
                                                   /*warns=*/environment.rank == 0);
  return comm::make_communicator(environment, config.comm, std::move(activity), {}, device);
}

double loaded_at = 0;  ///< time when the dynamic loader was done

/// Runs before the initializers of libtorch, which take most of the time until main(). The restart of the
/// program comes first, because it would lose a signal that was recorded.
void before_initializers(int count, char** arguments, char** environment) {
  set_early_environment(count, arguments, environment);
  loaded_at = util::monotonic_seconds();
  util::StopSignal::begin_early();
}
[[gnu::section(".preinit_array"), gnu::used]] void (*const first_initializer)(int, char**,
                                                                              char**) = before_initializers;

/// Ends the process at once, because most of its waits before training cannot be interrupted. If two threads
/// notice the signal, only one reports it.
[[noreturn]] void stop_before_training(bool first, int signal) {
  static std::mutex ends_the_process;
  const std::lock_guard lock(ends_the_process);
  if (first) {
    std::cout << "stopped by " << util::stop_signal_name(signal)
              << " before the first step; nothing was trained, and nothing needs to be saved" << std::endl;
  }
  std::_Exit(util::kExitPreempted);
}

/// Returns the signal that may have ended a lost peer, which ends at once if it is told to stop before
/// training: the same signal has reached this rank, or is on its way, and the first step has not ended.
std::optional<int> stopped_at_the_start_by(const util::Error& error, const comm::Activity& activity) {
  if (error.kind() != util::ErrorKind::kPeerLost || activity.snapshot().steps_begun > 1) return std::nullopt;
  constexpr std::chrono::milliseconds kLookAgain{10};
  for (int looks = 0; looks < 30 && !util::StopSignal::received(); ++looks) {
    std::this_thread::sleep_for(kLookAgain);
  }
  return util::StopSignal::received();
}

/// Trains under fsdp-launch --replica-size.
std::optional<train::ReplicaSummary> train_with_replicas(const config::Config& config,
                                                         const comm::LaunchEnvironment& environment,
                                                         launch::WorkerChannel& channel,
                                                         std::shared_ptr<comm::Activity> activity) {
  const c10::Device device =
      train::prepare_device(config.training, environment.local_rank, /*warns=*/environment.rank == 0);
  return train::train_with_replicas(
      config, environment, channel,
      {.connect =
           [options = config.comm, activity, device](const comm::LaunchEnvironment& epoch) {
             return comm::make_communicator(epoch, options, activity, {}, device);
           },
       .stop_requested = [] { return util::StopSignal::received().has_value(); },
       .activity = activity,
       .progress = train::progress_on_stderr()});
}

/// Trains under a watchdog; returns the exit code.
int train(const config::Config& config, const comm::LaunchEnvironment& environment,
          const std::string& resume_command) {
  util::limit_permissions(config.checkpoint.permissions);
  using Repeated = util::StopSignal::Repeated;
  // The run goes on if nobody reads its output any more.
  std::signal(SIGPIPE, SIG_IGN);
  // The object is never destroyed, so that a signal while the process ends does not change its exit code.
  new util::StopSignal(environment.has_launcher ? Repeated::kIsIgnored : Repeated::kEndsTheProcess);
  const bool first = environment.rank == 0;
  auto activity = std::make_shared<comm::Activity>();
  train::WatchdogOptions watching{
      .rank = environment.rank,
      .timeout_seconds = config.comm.timeout_seconds,
      .report_file = train::activity_file_of_launcher(),
      .on_stuck_collective = [] { std::_Exit(static_cast<int>(util::ErrorKind::kTimeout)); },
      .on_stop_before_training = [first](int signal) { stop_before_training(first, signal); }};
  std::unique_ptr<train::PeerStandings>
      standings;  // launchers of MPI do not report which rank waits for which
  if (comm::is_over_mpi(config.comm.backend) && environment.world_size > 1) {
    standings = std::make_unique<train::PeerStandings>(train::posts_over_mpi(comm::MpiRun::get()), activity);
    watching.on_look = [&standings] { standings->answer(); };
  }
  train::Watchdog watchdog(activity, std::move(watching));
  try {
    if (const auto channel = launch::WorkerChannel::from_environment()) {
      const auto summary = train_with_replicas(config, environment, *channel, activity);
      if (summary && summary->is_first) print(*summary, config, resume_command);
      return summary && !summary->stopped ? 0 : util::kExitPreempted;
    }
    auto communicator = connect(config, environment, activity);
    train::Trainer trainer(
        config, communicator, first ? train::progress_on_stderr() : train::ProgressOutput{},
        {.stop_requested = [] { return util::StopSignal::received().has_value(); }, .activity = activity});
    train::RunSummary summary = trainer.run();
    if (first) print(summary, config, resume_command);
    return summary.stopped ? util::kExitPreempted : 0;
  } catch (const util::Error& error) {
    if (const auto signal = stopped_at_the_start_by(error, *activity)) stop_before_training(first, *signal);
    watchdog.report_failure(error.what());
    const bool is_agreed = dynamic_cast<const comm::AgreedError*>(&error) != nullptr;
    if (standings && !is_agreed) standings->tell(error.exit_code());
    throw;
  } catch (const std::exception& error) {
    watchdog.report_failure(error.what());
    if (standings) standings->tell(static_cast<int>(util::ErrorKind::kUnexpected));
    throw;
  }
}

void explain(const config::Config& config, const comm::LaunchEnvironment& environment,
             const train::ExplainOptions& options) {
  auto communicator = connect(config, environment);
  cli::print(cli::with_flags(train::explain_step(config, communicator, options)));
}

/// Records the phases that are over when main() begins.
void begin_start_record() {
  const double now = util::monotonic_seconds(), created = now - util::process_age_seconds();
  std::vector<util::StartPhase> phases;
  if (const char* began = std::getenv(kLaunchStart)) {
    phases.push_back({"fsdp-launch", std::max(0.0, created - std::atof(began))});
  }
  phases.push_back({"loading of the program and its libraries", loaded_at - created});
  phases.push_back({"initializers of libraries", now - loaded_at});
  util::begin_start_record(std::move(phases), now);
}

void profile_start(const config::Config& config, const comm::LaunchEnvironment& environment, bool json) {
  util::start_phase("connection of the ranks");
  const auto phases = train::profile_start(config, connect(config, environment));
  if (environment.rank == 0) cli::print(json ? train::start_json(phases) : train::start_text(phases));
}

void evaluate(const config::Config& config, const comm::LaunchEnvironment& environment,
              const std::string& weights) {
  auto communicator = connect(config, environment);
  const train::Validation validation = train::evaluate(config, communicator, weights);
  if (environment.rank == 0) cli::print(train::validation_text(validation) + "\n");
}

/// Prints the plan, for which no process of its world is needed. Under a launcher the first rank prints it.
void plan(config::Config config, const Arguments& arguments) {
  const bool json = arguments.planning.json;
  if (!arguments.dry_run) {
    const plan::Plan plan = apps::make_plan(config, arguments.planning);
    cli::print(json ? plan_json(plan) : plan_text(plan));
    return;
  }
  const c10::Device device = train::prepare_device(config.training, /*local_rank=*/0, /*warns=*/true);
  config.training.device = device.is_cpu() ? "cpu" : "cuda";  // the plan is made for the measured device
  const plan::Plan plan = apps::make_plan(config, arguments.planning);
  train::DryRun measured = train::dry_run(config, plan.mesh.world_size(), device);
  cli::print(json ? dry_run_json(plan, measured) : dry_run_text(plan, measured));
}

/// Waits while the first process prints a message that all would print. A launcher stops all processes as
/// soon as one ends, which must not be before the message is printed.
void let_the_first_speak() {
  constexpr std::chrono::milliseconds kLookAgain{10};
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(3);
  while (std::chrono::steady_clock::now() < end) {
    if (const auto signal = util::StopSignal::received()) std::_Exit(128 + *signal);
    std::this_thread::sleep_for(kLookAgain);
  }
}

/// Returns the overrides, with the weights to evaluate as the first weights of a run that takes no step.
std::vector<std::string> overrides_of(const Arguments& arguments) {
  std::vector<std::string> overrides = arguments.overrides;
  if (arguments.evaluate.empty()) return overrides;
  overrides.push_back("model.init_from=" + config::quoted_text(arguments.evaluate));
  for (const char* text :
       {"checkpoint.init_from=\"\"", "checkpoint.init_only=[]", "checkpoint.init_missing=[]"}) {
    overrides.emplace_back(text);
  }
  return overrides;
}

int run(const Arguments& arguments) {
  if (!arguments.report.empty()) {
    const std::vector<std::filesystem::path> folders(arguments.report.begin(), arguments.report.end());
    cli::print(report::write_report(folders, arguments.report_output).string() + "\n");
    return 0;
  }
  if (!arguments.watch.empty()) {
    report::watch(arguments.watch);
    return 0;
  }
  comm::LaunchEnvironment environment = comm::read_launch_environment();
  config::Config config;
  try {
    config::TracedConfig traced = config::trace_config(arguments.config_path, overrides_of(arguments));
    util::set_log_times(traced.config.logging.timestamps);
    if (environment.rank == 0) {
      for (const std::string& warning : traced.warnings) util::log_warning(warning);
    }
    if (arguments.print_config) {
      if (environment.rank == 0) cli::print(config::to_toml(traced));
      return 0;
    }
    config = traced.config;
  } catch (const util::Error&) {
    if (environment.local_rank != 0)
      let_the_first_speak();  // the first of the node, whose files are the same
    throw;
  }
  if (arguments.plan || arguments.dry_run) {
    if (environment.rank == 0) plan(config, arguments);
    return 0;
  }
  if (comm::is_over_mpi(config.comm.backend)) environment = comm::launch_environment(config.comm);
  try {
    if (arguments.explain_step) {
      explain(config, environment, {.all_units = arguments.all_units, .timeline = arguments.timeline});
    } else if (arguments.profile_start) {
      profile_start(config, environment, arguments.planning.json);
    } else if (!arguments.evaluate.empty()) {
      evaluate(config, environment, arguments.evaluate);
    } else {
      std::string resume_command = arguments.command;
      if (config.checkpoint.resume != "auto") resume_command += " checkpoint.resume=auto";
      return train(config, environment, resume_command);
    }
  } catch (const comm::AgreedError& error) {
    if (environment.rank == 0) throw;
    let_the_first_speak();
    return error.exit_code();
  }
  return 0;
}

/// Whether the program only reads folders of runs, which needs no config.
bool looks_at_runs(const Arguments& arguments) {
  return !arguments.report.empty() || !arguments.watch.empty();
}

/// Whether the model of the config is computed. Only then is a plug-in loaded that the config names.
bool computes(const Arguments& arguments) {
  return !looks_at_runs(arguments) && !arguments.print_config && !arguments.plan;
}

/// Whether the program trains, and so saves before it ends. Otherwise a signal ends it like any program.
bool trains(const Arguments& arguments) {
  return !looks_at_runs(arguments) && !arguments.print_config && !arguments.plan && !arguments.dry_run &&
         !arguments.explain_step && !arguments.profile_start && arguments.evaluate.empty();
}

void add_plan_options(CLI::App& app, Arguments& arguments) {
  CLI::Option* plan = app.add_flag(
      "--plan", arguments.plan,
      "print what a rank of the run would need, computed from the config alone: memory, communication, time, "
      "the largest micro-batch that fits, and what to change if none does. Needs no data, no other process "
      "and little memory. The program fsdp-plan prints the same");
  CLI::Option* dry_run = app.add_flag(
      "--dry-run", arguments.dry_run,
      "train some steps on random tokens as rank 0 of the world, without the other ranks, and print the "
      "plan beside what was measured. Needs the memory of one rank on training.device, "
      "reads no data and writes no file");
  plan->excludes(dry_run);
  apps::add_plan_options(app, arguments.planning, "with --plan or --dry-run: ");
}

/// Refuses options of a plan without --plan or --dry-run.
void check_plan_options(const CLI::App& app, const Arguments& arguments) {
  if (arguments.plan || arguments.dry_run) return;
  for (const std::string& name : apps::plan_option_names()) {
    if (app.count(name) == 0 || (arguments.profile_start && name == "--json")) continue;
    util::fail(util::ErrorKind::kUsage, name,
               ": expected --plan or --dry-run as well; found neither; add one");
  }
}

int check_that_a_config_is_named(const CLI::App& app, const Arguments& arguments) {
  const std::string& word = arguments.config_path;
  const std::string commands = util::join(cli::command_names(app), ", ");
  if (word.empty()) {
    util::fail(util::ErrorKind::kUsage, "command line: expected a config (a TOML file) or a command (",
               commands,
               "); found neither; fsdp-train init quickstart --output config.toml writes a first config");
  }
  const std::string command = cli::misspelt_command(app, word);
  if (command.empty()) return 0;
  util::fail(util::ErrorKind::kUsage, "command line: expected a config (a TOML file) or a command (",
             commands, "); found ", util::shell_word(word), ", which is neither; did you mean ", command,
             "?");
}

int run_command(const CLI::Option& config, const std::function<int()>& command) {
  if (config.count() == 0) return command();
  util::fail(util::ErrorKind::kUsage,
             "expected a command (init, keys, doctor) as the first argument; found it after \"",
             config.as<std::string>(), "\"; for a config with the name of a command, write ./NAME");
}

cli::Page page() {
  return {
      .name = "fsdp-train",
      .summary = "train a transformer with fully sharded data parallelism",
      .examples =
          {{"a commented config as a starting point", "fsdp-train init pretrain --output config.toml"},
           {"one that fine-tunes a Hugging Face model",
            "fsdp-train init finetune --from models/SmolLM2-135M --output config.toml"},
           {"whether this machine is ready for it", "fsdp-train doctor config.toml"},
           {"one process", "fsdp-train config.toml"},
           {"two processes, with two keys overridden",
            "fsdp-launch --nproc-per-node 2 -- fsdp-train config.toml training.steps=400 "
            "optimizer.lr=3e-4"},
           {"every key with its value and the origin of the value", "fsdp-train config.toml --print-config"},
           {"what happens in a step",
            "fsdp-launch --nproc-per-node 2 -- fsdp-train config.toml --explain-step"},
           {"where the time to the first step goes",
            "fsdp-launch --nproc-per-node 2 -- fsdp-train config.toml --profile-start"},
           {"a picture of that step",
            "fsdp-launch --nproc-per-node 2 -- fsdp-train config.toml --explain-step --timeline step.svg"},
           {"what each of 64 ranks would need, planned and measured",
            "fsdp-train config.toml --dry-run --world-size 64"},
           {"the validation loss of the run's best weights",
            "fsdp-train config.toml --evaluate checkpoints/run/best"},
           {"a live view of a run in a terminal", "fsdp-train --watch checkpoints/run"},
           {"the curves and settings of a run as an HTML page", "fsdp-train --report checkpoints/run"},
           {"the curves of two runs, and what differs in their configs",
            "fsdp-train --report checkpoints/run-1 checkpoints/run-2 --output comparison.html"}},
      .words = apps::config_words(),
      .answer_to_foreign_word = config::foreign_flag_answer};
}

}  // namespace

int main(int argc, char** argv) {
  begin_start_record();
  CLI::App app("Trains a transformer with fully sharded data parallelism; one process of a run.",
               "fsdp-train");
  Arguments arguments;
  CLI::Option* config = app.add_option("config", arguments.config_path, "TOML file")->check(cli::not_empty());
  app.add_option("overrides", arguments.overrides, "section.key=value, overrides the file");
  apps::add_plugin_option(
      app, arguments.plugins,
      "; those that the config names in run.plugins are loaded when its model is computed, but not "
      "by --help, --print-config, --plan and doctor");
  app.add_flag("--print-config", arguments.print_config,
               "print every key with its value and the origin of the value (default, line of "
               "the file, command line), and exit");
  CLI::Option* explain = app.add_flag(
      "--explain-step", arguments.explain_step,
      "train two steps from the initial weights and print what happened in the second: a timeline of rank 0, "
      "and communication and memory against their formula. Reads no checkpoint and, without --timeline, "
      "writes no file");
  app.add_flag("--all-units", arguments.all_units, "with --explain-step: every event of every unit")
      ->needs(explain);
  app.add_option(
         "--timeline", arguments.timeline,
         "with --explain-step: also write what rank 0 did in that step to this file: compute, "
         "communication, waits and live memory, as a picture (FILE.svg) or as JSON for chrome://tracing "
         "and ui.perfetto.dev (FILE.json)")
      ->check(cli::not_empty())
      ->needs(explain);
  app.add_option(
         "--evaluate", arguments.evaluate,
         "print loss, perplexity and bits per byte of data.validation for these weights, and exit: a "
         "checkpoint's folder, a run's (its newest checkpoint; FOLDER/best: its best), a safetensors file or a "
         "Hugging Face folder. Writes no file")
      ->check(cli::not_empty())
      ->excludes(explain);
  CLI::Option* report =
      app.add_option(
             "--report", arguments.report,
             "write report.html into this folder of a run, which may still be running, print its path, "
             "and exit: curves, config, environment, and the picture of a step if "
             "logging.trace_communication was on. With several folders: write comparison.html into the "
             "working directory, with the curves of all runs and the keys in which they differ")
          ->check(cli::not_empty())
          ->excludes(config)
          ->excludes(explain);
  app.add_option("--output", arguments.report_output, "with --report: write this file instead")
      ->check(cli::not_empty())
      ->needs(report);
  app.add_option(
         "--watch", arguments.watch,
         "show this folder of a run in the terminal until the run ends or q is pressed: progress, curve of "
         "the loss, speed, memory, the processes on this host, validations and checkpoints. Prints this "
         "once if the output is not a terminal")
      ->check(cli::not_empty())
      ->excludes(config)
      ->excludes(explain)
      ->excludes(report);
  CLI::Option* profile = app.add_flag(
      "--profile-start", arguments.profile_start,
      "train one step from the first weights, or from the checkpoint that checkpoint.resume names, and "
      "print where the time from the start of rank 0, or of fsdp-launch, to the end of the step went. "
      "Leaves the run's folder alone. With --json, prints one JSON object");
  add_plan_options(app, arguments);
  for (const char* other :
       {"--print-config", "--explain-step", "--evaluate", "--report", "--watch", "--plan", "--dry-run"}) {
    profile->excludes(app.get_option(other));
  }
  std::function<int()> command;
  apps::add_train_commands(app, command);
  app.footer([&arguments] { return apps::keys_for_help(arguments.plugins); });
  if (const auto code = cli::parse(app, page(), argc, argv)) return *code;
  plugin::load_with_configs(arguments.plugins, !command && computes(arguments)
                                                   ? plugin::OfConfigs::kAreLoaded
                                                   : plugin::OfConfigs::kAreRefused);
  std::vector<std::string> words;
  for (char** word = argv; *word != nullptr; ++word) words.push_back(util::shell_word(*word));
  arguments.command = util::join(words, " ");
  if (command || !trains(arguments)) util::StopSignal::end_early();
  if (!command && !looks_at_runs(arguments)) {
    const int code = util::run_guarded([&] { return check_that_a_config_is_named(app, arguments); });
    if (code != 0) return code;
  }
  if (command) return util::run_guarded([&] { return run_command(*config, command); });
  data::exit_at_lost_pages();
  util::MappedAllocator::install();
  return util::run_guarded([&] {
    check_plan_options(app, arguments);
    return run(arguments);
  });
}
