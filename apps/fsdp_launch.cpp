// fsdp-launch: starts the processes of a training run on this node and watches them, as torchrun does.

#include <cstdlib>
#include <string>

#include "base/cli/program.h"
#include "base/cli/usage_error.h"
#include "base/util/error.h"
#include "base/util/start_clock.h"
#include "early_environment.h"
#include "tools/launch/command_line.h"
#include "tools/launch/supervisor.h"

int main(int argc, char** argv) {
  using namespace fsdp;
  const cli::Page page{
      .name = "fsdp-launch",
      .summary = "start and supervise the processes of a training run, as torchrun does",
      .examples = {{"two processes on this machine",
                    "fsdp-launch --nproc-per-node 2 -- fsdp-train config.toml"},
                   {"two nodes; the same on the other with --node-rank 1",
                    "fsdp-launch --nnodes 2 --node-rank 0 --master-addr HOST0 "
                    "--nproc-per-node 8 -- fsdp-train config.toml"},
                   {"two hosts over ssh, from the first one",
                    "fsdp-launch --hosts localhost,HOST1 --master-addr HOST0 -- fsdp-train config.toml"},
                   {"two to four nodes that may join and leave, restarted up to three times",
                    "fsdp-launch --nnodes 2:4 --rdzv-backend c10d --rdzv-endpoint HOST0 --rdzv-id run7 "
                    "--max-restarts 3 \\\n      --nproc-per-node gpu -- fsdp-train config.toml"}},
      .words = {},
      .runs_program = true};
  return util::run_guarded([&] {
    const auto options = launch::parse_command_line(
        argc, argv,
        {.prepare = [&](CLI::App& app) { return cli::prepare(app, page, argc, argv); },
         .explain = [&](const CLI::App& app,
                        const CLI::ParseError& error) { return cli::usage_error_text(app, page, error); }});
    if (options && !options->on_hosts.hosts.empty()) {
      launch::launch_on_hosts(options->on_hosts, options->program);
    }
    if (options) {
      const double began = util::monotonic_seconds() - util::process_age_seconds();
      ::setenv(kLaunchStart, std::to_string(began).c_str(), /*overwrite=*/1);
      if (!options->program.empty()) set_environment_of(options->program.front());
      return launch::launch(*options);
    }
    cli::print("");  // help or version was requested, and is printed by now
    return 0;
  });
}
