// fsdp-plan CONFIG.toml [section.key=value ...]: what fsdp-train --plan prints, in a program without
// libtorch.

#include <CLI/CLI.hpp>
#include <iostream>
#include <string>
#include <vector>

#include "config/load.h"
#include "config/print.h"
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
  app.add_option("config", config_path, "TOML file")->required();
  app.add_option("overrides", overrides, "section.key=value, in place of what the file says");
  apps::add_plan_options(app, arguments);
  app.footer("Keys of the config:\n\n" + config::key_reference());
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : static_cast<int>(util::ErrorKind::kUsage);
  }
  return util::run_guarded([&] {
    const config::Config config = config::load_config(config_path, overrides);
    const plan::Plan plan = plan::make_plan(config, arguments.machines);
    std::cout << (arguments.json ? plan_json(plan) : plan_text(plan)) << std::flush;
    return 0;
  });
}
