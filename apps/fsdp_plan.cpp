// fsdp-plan CONFIG.toml [section.key=value ...]: prints the plan of fsdp-train --plan, in a program that does
// not train.

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "base/cli/program.h"
#include "base/util/error.h"
#include "base/util/text.h"
#include "config_words.h"
#include "plan_options.h"
#include "plugin_option.h"
#include "setup/config/foreign_names.h"
#include "setup/config/load.h"
#include "setup/config/presets.h"
#include "setup/plugin/load.h"
#include "simulate_options.h"
#include "tools/plan/text.h"

namespace {

using namespace fsdp;

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const config::ModelPreset& preset : config::model_presets()) names.push_back(preset.name);
  return names;
}

/// Returns the config with which such a model would be trained. `first`: the first word behind the options,
/// which is an override here.
config::Config preset_config(const std::string& name, const std::string& first,
                             std::vector<std::string> overrides) {
  if (!first.empty()) {
    if (first.find('=') == std::string::npos) {
      util::fail(util::ErrorKind::kUsage, "command line: expected a config or --preset; found ",
                 util::shell_word(first), " and --preset ", name, "; leave one of the two out");
    }
    overrides.insert(overrides.begin(), first);
  }
  const std::string model = util::concat("[model]\npreset = \"", name, "\"\n");
  const auto with = [&](int64_t length) {
    return util::concat(model, "[data]\ntrain = [\"none\"]\nmicro_batch_size = 1\nsequence_length = ", length,
                        "\n[mixed_precision]\nparam_dtype = "
                        "\"bfloat16\"\n[activation_checkpointing]\nmode = \"full\"\n");
  };
  const std::string source = "--preset " + name;
  const int64_t longest = config::parse_config(with(1), source).model.max_position_embeddings;
  return config::parse_config(with(longest), source, overrides);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Prints what a rank of the run would need, computed from the config alone: memory, communication, "
      "time, the largest micro-batch that fits, and what to change if none does. The same as fsdp-train "
      "--plan, in a smaller program.",
      "fsdp-plan");
  std::string config_path, preset;
  std::vector<std::string> overrides, plugins;
  apps::PlanArguments arguments;
  apps::SimulateArguments simulation;
  CLI::Option* config = app.add_option("config", config_path, "TOML file")->check(cli::not_empty());
  app.add_option("overrides", overrides, "section.key=value, overrides the file");
  app.add_option(
         "--preset", preset,
         "instead of a config: this model (of model.preset), with its longest sequence, in bfloat16 and "
         "with recomputation; overrides change that")
      ->check(cli::one_of(preset_names()));
  apps::add_plan_options(app, arguments);
  apps::add_simulate_options(app, simulation);
  apps::add_plugin_option(app, plugins, "; a config that names one in run.plugins does not load it here");
  app.footer([&] { return apps::keys_for_help(plugins); });
  const cli::Page page{
      .name = "fsdp-plan",
      .summary = "what a rank of a training run would need, computed from its config",
      .examples =
          {{"a model of 175 billion parameters on devices of 40 GiB",
            "fsdp-plan configs/plan/175b.toml --gpu-memory-gib 40"},
           {"another number of ranks, and machines of a given speed",
            "fsdp-plan config.toml --world-size 256 --bandwidth-gbps 200 --flops-tflops 300"},
           {"a well-known model on GPUs by their data sheet, and how long 15 trillion tokens take",
            "fsdp-plan --preset llama3-8b --gpus 64 --gpu h100 --tokens 15T"},
           {"a simulated step, with a network by its name, and what faults make of the run",
            "fsdp-plan --preset llama3-8b --gpus 1024 --gpu h100-sxm --simulate --network ib-400 "
            "--mtbf-hours 5000"},
           {"how to share a run between two hosts with 8 GPUs each on a link of 10 Gbit/s",
            "fsdp-plan --preset llama3-8b --gpus 16 --gpu h100 --simulate --network tcp-10 --propose"},
           {"as JSON, with a key changed", "fsdp-plan config.toml data.micro_batch_size=8 --json"}},
      .words = apps::config_words(),
      .answer_to_foreign_word = config::foreign_flag_answer};
  if (const auto code = cli::parse(app, page, argc, argv)) return *code;
  plugin::load_with_configs(plugins, plugin::OfConfigs::kAreRefused);
  return util::run_guarded([&] {
    if (preset.empty() && config->count() == 0) {
      util::fail(
          util::ErrorKind::kUsage,
          "command line: expected a config (a TOML file) or --preset; found neither; for example: fsdp-plan "
          "--preset llama3-8b --gpus 8 --gpu h100");
    }
    const auto config_with = [&](const std::vector<std::string>& more) {
      std::vector<std::string> all = overrides;
      all.insert(all.end(), more.begin(), more.end());
      return preset.empty() ? config::load_config(config_path, all) : preset_config(preset, config_path, all);
    };
    if (simulation.proposes) {
      apps::print_proposals(config_with, arguments, simulation);
      return 0;
    }
    const config::Config planned = config_with({});
    if (simulation.is_on) {
      apps::print_simulation(planned, arguments, simulation);
      return 0;
    }
    const plan::Plan plan = apps::make_plan(planned, arguments);
    cli::print(arguments.json ? plan_json(plan) : plan_text(plan));
    return 0;
  });
}
