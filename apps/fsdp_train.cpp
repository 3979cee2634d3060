// fsdp-train CONFIG.toml [section.key=value ...]: one process of a training run.

#include <CLI/CLI.hpp>
#include <iostream>
#include <string>
#include <vector>

#include "comm/launch_environment.h"
#include "comm/make_communicator.h"
#include "config/load.h"
#include "config/print.h"
#include "train/trainer.h"
#include "util/error.h"
#include "util/text.h"

namespace {

struct Arguments {
  std::string config_path;
  std::vector<std::string> overrides;
  bool print_config = false;
};

using namespace fsdp;

void train(const config::Config& config, const comm::LaunchEnvironment& environment) {
  std::shared_ptr<comm::Communicator> communicator = comm::make_communicator(environment, config.comm);
  bool first = environment.rank == 0;
  train::Trainer trainer(config, communicator, first ? train::progress_on_stderr() : train::ProgressOutput{});
  train::RunSummary summary = trainer.run();
  if (!first) return;
  std::cout << "finished at step " << summary.step;
  if (summary.loss) std::cout << ", loss " << util::fixed(*summary.loss, 4);
  if (summary.validation_loss) std::cout << ", validation loss " << util::fixed(*summary.validation_loss, 4);
  if (!summary.last_checkpoint.empty()) std::cout << ", saved " << summary.last_checkpoint.string();
  std::cout << std::endl;
}

int run(const Arguments& arguments) {
  comm::LaunchEnvironment environment = comm::read_launch_environment();
  // What all processes say alike is said once: of the config by one process a node, of the run by rank 0.
  bool silent = environment.local_rank != 0;
  try {
    config::Config config = config::load_config(arguments.config_path, arguments.overrides);
    if (arguments.print_config) {
      if (!silent) std::cout << config::to_toml(config);
      return 0;
    }
    silent = false;
    train(config, environment);
  } catch (const comm::AgreedError& error) {
    if (environment.rank != 0) return error.exit_code();
    throw;
  } catch (const util::Error& error) {
    if (silent) return error.exit_code();
    throw;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Trains a transformer with fully sharded data parallelism; one process of a run.");
  Arguments arguments;
  app.add_option("config", arguments.config_path, "TOML file")->required();
  app.add_option("overrides", arguments.overrides, "section.key=value, in place of what the file says");
  app.add_flag("--print-config", arguments.print_config, "print every key with its value, and end");
  app.footer("Keys of the config:\n\n" + config::key_reference());
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : static_cast<int>(util::ErrorKind::kUsage);
  }
  return util::run_guarded([&] { return run(arguments); });
}
