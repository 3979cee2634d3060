// fsdp-plan CONFIG.toml [section.key=value ...]: what fsdp-train --plan prints, in a program without
// libtorch.

#include <CLI/CLI.hpp>
#include <iostream>
#include <string>
#include <vector>

#include "cli/program.h"
#include "config/load.h"
#include "config/print.h"
#include "config_words.h"
#include "plan/text.h"
#include "plan_options.h"
#include "util/error.h"

int main(int argc, char** argv) {
  using namespace fsdp;
  CLI::App app(
      "Prints what a rank of the run would need, computed from the config alone: memory, communication, "
      "time, the largest micro batch that fits, and what to change when none does. The same as fsdp-train "
      "--plan, in some MiB of memory.",
      "fsdp-plan");
  std::string config_path;
  std::vector<std::string> overrides;
  apps::PlanArguments arguments;
  app.add_option("config", config_path, "TOML file")->required()->check(cli::not_empty());
  app.add_option("overrides", overrides, "section.key=value, in place of what the file says");
  apps::add_plan_options(app, arguments);
  app.footer("Keys of the config:\n\n" + config::key_reference());
  const cli::Page page{
      .name = "fsdp-plan",
      .summary = "what a rank of a training run would need, computed from its config",
      .examples = {{"a model of 175 billion parameters on devices of 40 GiB",
                    "fsdp-plan configs/plan/175b.toml --gpu-memory-gib 40"},
                   {"another number of ranks, and the speed of machines that are not there",
                    "fsdp-plan config.toml --world-size 256 --bandwidth-gbps 200 --flops-tflops 300"},
                   {"as JSON, with a key changed", "fsdp-plan config.toml data.micro_batch_size=8 --json"}},
      .words = apps::config_words()};
  if (const auto code = cli::parse(app, page, argc, argv)) return *code;
  return util::run_guarded([&] {
    const config::Config config = config::load_config(config_path, overrides);
    const plan::Plan plan = plan::make_plan(config, arguments.machines);
    cli::print(arguments.json ? plan_json(plan) : plan_text(plan));
    return 0;
  });
}
