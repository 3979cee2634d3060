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
#include "data/streams/stream_samples.h"
#include "data/tokens/lost_pages.h"
#include "early_environment.h"
#include "run/replicas/replicas.h"
#include "run/train/device.h"
#include "run/train/dry_run.h"
#include "run/train/evaluate.h"
#include "run/train/explain_step.h"
#include "run/train/peer_standings.h"
#include "run/train/profile_start.h"
#include "run/train/reference_log_probs.h"
#include "run/train/trainer.h"
#include "run/train/watchdog.h"
#include "setup/config/foreign_names.h"
#include "setup/config/load.h"
#include "setup/config/print.h"
#include "setup/config/value.h"
#include "setup/plugin/load.h"
#include "shard/units/option_conflicts.h"
#include "tools/launch/worker_channel.h"
#include "tools/plan/text.h"
#include "tools/report/report.h"
#include "tools/report/watch.h"
#include "train_commands.h"
#include "train_options.h"

namespace {

using namespace fsdp;
using Arguments = apps::TrainArguments;

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
             train::ExplainOptions options) {
  options.ranks_of_host = environment.single_node() ? 0 : environment.local_world_size;
  auto communicator = connect(config, environment);
  const std::string text = train::explain_step(config, communicator, options);
  cli::print(options.json ? text : cli::with_flags(text));
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
              const std::string& weights, bool json) {
  auto communicator = connect(config, environment);
  const train::Evaluation evaluation = train::evaluate(config, communicator, weights);
  if (environment.rank == 0) cli::print(json ? evaluation_json(evaluation) : evaluation_text(evaluation));
}

void write_references(const config::Config& config, const comm::LaunchEnvironment& environment) {
  const auto files = train::write_reference_log_probs(config, connect(config, environment));
  if (environment.rank != 0) return;
  for (const std::filesystem::path& file : files) cli::print(util::concat("wrote ", file.string(), "\n"));
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
  config.mesh.ranks_of_host = plan.config.mesh.ranks_of_host;
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
    if (arguments.planning.json) {
      cli::print(report::watch_json(arguments.watch));
    } else {
      report::watch(arguments.watch);
    }
    return 0;
  }
  comm::LaunchEnvironment environment = comm::read_launch_environment();
  config::Config config;
  try {
    config::TracedConfig traced = config::trace_config(arguments.config_path, overrides_of(arguments));
    if (traced.config.logging.timestamps) util::set_log_times(true);
    if (environment.rank == 0) {
      for (const std::string& warning : traced.warnings) util::log_warning(warning);
    }
    if (arguments.print_config) {
      if (environment.rank == 0) {
        cli::print(arguments.planning.json ? config_json(traced) : to_toml(traced));
      }
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
  // Only quantized collectives need to know, and the ranks compare what they know.
  const bool has_hosts = environment.local_world_size < environment.world_size;
  if (has_hosts && shard::codes_links(config.fsdp)) config.mesh.ranks_of_host = environment.local_world_size;
  try {
    if (arguments.explain_step) {
      explain(config, environment,
              {.all_units = arguments.all_units,
               .timeline = arguments.timeline,
               .json = arguments.planning.json});
    } else if (arguments.profile_start) {
      profile_start(config, environment, arguments.planning.json);
    } else if (arguments.reference_log_probs) {
      write_references(config, environment);
    } else if (!arguments.evaluate.empty()) {
      evaluate(config, environment, arguments.evaluate, arguments.planning.json);
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
           {"every key with its value and the origin of the value", "fsdp-train print-config config.toml"},
           {"what happens in a step",
            "fsdp-launch --nproc-per-node 2 -- fsdp-train explain-step config.toml"},
           {"where the time to the first step goes",
            "fsdp-launch --nproc-per-node 2 -- fsdp-train profile-start config.toml"},
           {"a picture of that step",
            "fsdp-launch --nproc-per-node 2 -- fsdp-train explain-step config.toml --timeline step.svg"},
           {"what each of 64 ranks would need, planned and measured",
            "fsdp-train dry-run config.toml --world-size 64"},
           {"the validation loss of the run's best weights",
            "fsdp-train evaluate config.toml checkpoints/run/best"},
           {"a live view of a run in a terminal", "fsdp-train watch checkpoints/run"},
           {"the curves and settings of a run as an HTML page", "fsdp-train report checkpoints/run"},
           {"the curves of two runs, and what differs in their configs",
            "fsdp-train report checkpoints/run-1 checkpoints/run-2 --output comparison.html"},
           {"whether the second of two runs is better, beyond noise",
            "fsdp-train compare checkpoints/run-1 checkpoints/run-2"}},
      .words = apps::config_words(),
      .answer_to_foreign_word = config::foreign_flag_answer};
}

}  // namespace

int main(int argc, char** argv) {
  begin_start_record();
  CLI::App app("Trains a transformer with fully sharded data parallelism; one process of a run.",
               "fsdp-train");
  Arguments arguments;
  apps::add_train_options(app, arguments);
  std::function<int()> command;
  apps::add_train_commands(app, command);
  apps::add_train_actions(app, arguments);
  app.footer([&arguments] { return apps::keys_for_help(arguments.plugins); });
  if (const auto code = cli::parse(app, page(), argc, argv)) return *code;
  plugin::load_with_configs(arguments.plugins, !command && arguments.computes()
                                                   ? plugin::OfConfigs::kAreLoaded
                                                   : plugin::OfConfigs::kAreRefused);
  std::vector<std::string> words;
  for (char** word = argv; *word != nullptr; ++word) words.push_back(util::shell_word(*word));
  arguments.command = util::join(words, " ");
  if (command || !arguments.trains()) util::StopSignal::end_early();
  return util::run_guarded([&] {
    apps::check_train_words(app, arguments);
    if (command) return command();
    data::exit_at_lost_pages();
    data::read_texts_as_data_sets();
    util::MappedAllocator::install();
    return run(arguments);
  });
}
