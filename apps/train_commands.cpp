#include "train_commands.h"

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "base/cli/program.h"
#include "base/cli/usage_error.h"
#include "base/tensor/mapped_allocator.h"
#include "base/util/error.h"
#include "base/util/file.h"
#include "base/util/text.h"
#include "comm/backends/make_communicator.h"
#include "run/train/device.h"
#include "setup/config/load.h"
#include "setup/config/presets.h"
#include "setup/config/print.h"
#include "setup/translate/translate.h"
#include "tools/doctor/calibrate.h"
#include "tools/doctor/doctor.h"
#include "tools/report/compare.h"

namespace fsdp::apps {
namespace {

using util::ErrorKind;

struct InitArguments {
  std::string preset, output, from, from_config;
  bool force = false;
};

/// Renames the config in the commands at the head of a preset, where it is configs/NAME.toml.
void rename_in_commands(std::string& text, const std::string& preset, const std::string& output) {
  const std::string from = "configs/" + preset + ".toml", to = util::printable(util::shell_word(output));
  if (to.find('\n') != std::string::npos) return;  // it would end the comment
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

/// One sentence about what the translation has left out.
std::string summary_of(const config::Translation& translation, const std::string& file) {
  const size_t shown = std::min<size_t>(translation.left_out.size(), 12);
  std::vector<std::string> names(translation.left_out.begin(), translation.left_out.begin() + shown);
  if (shown < translation.left_out.size()) {
    names.push_back(util::concat(translation.left_out.size() - shown, " more"));
  }
  return util::printable(
      util::concat(file, " is ", translation.form, "; of its ", translation.names, " names with a value ",
                   names.empty() ? "none was" : util::join(names, ", "), names.empty() ? "" : " were",
                   " left out, and comments in the config say why and what to do before the run"));
}

int init(const InitArguments& arguments) {
  const bool has_model = !arguments.from.empty();
  const bool tunes = arguments.preset == config::kFinetune || arguments.preset == config::kChats;
  if (has_model && !arguments.preset.empty() && !tunes) {
    util::fail(ErrorKind::kUsage, "--from requires the preset finetune or chats, but the preset is ",
               arguments.preset, "; leave one of the two out");
  }
  const std::string usual = has_model ? config::kFinetune : "quickstart";
  const std::string preset = arguments.preset.empty() ? usual : arguments.preset;
  std::string text;
  if (!arguments.from_config.empty()) {
    const config::Translation translation = config::translated(arguments.from_config);
    text = translation.toml;
    std::cerr << summary_of(translation, arguments.from_config) << "\n";
  } else {
    text = has_model ? config::tuning_toml(preset, arguments.from) : config::find_preset(preset).text;
  }
  if (arguments.output.empty()) {
    cli::print(text);
    return 0;
  }
  // A dangling link exists too. If the path cannot be examined, the error of writing explains why.
  std::error_code ignored;
  if (!arguments.force &&
      std::filesystem::exists(std::filesystem::symlink_status(arguments.output, ignored))) {
    util::fail(ErrorKind::kUsage, "--output must not exist, but ", arguments.output,
               " does; choose another name, or add --force to replace it");
  }
  rename_in_commands(text, preset, arguments.output);
  util::write_file_atomically(arguments.output, text);
  cli::print(util::concat("wrote ", arguments.output, "\n"));
  return 0;
}

void add_init(CLI::App& app, std::function<int()>& run) {
  std::string about = "print a commented config, or write it to a file";
  size_t width = 0;
  for (const config::Preset& preset : config::all_presets()) width = std::max(width, preset.name.size());
  std::string presets;
  for (const config::Preset& preset : config::all_presets()) {
    presets += "\n  " + preset.name + std::string(width + 2 - preset.name.size(), ' ') + preset.about;
  }
  CLI::App* command = app.add_subcommand("init", about);
  auto arguments = std::make_shared<InitArguments>();
  command->add_option("preset", arguments->preset, "the preset; default: quickstart")
      ->check(cli::one_of(config::preset_names()));
  command
      ->add_option("--from", arguments->from,
                   "with finetune or chats: the model in this Hugging Face folder, GGUF file or checkpoint; "
                   "[model], tokenizer and units are set accordingly")
      ->check(cli::not_empty());
  command
      ->add_option(
          "--from-config", arguments->from_config,
          "translate this config of axolotl or LLaMA-Factory (YAML), torchtitan (TOML) or Hugging Face's "
          "Trainer (TrainingArguments in JSON); comments list what was left out")
      ->check(cli::not_empty())
      ->excludes("preset")
      ->excludes("--from");
  command->add_option("--output", arguments->output, "write to this file, which must not exist")
      ->check(cli::not_empty());
  command->add_flag("--force", arguments->force, "with --output: replace an existing file");
  command->footer("Presets:" + presets);
  command->callback([arguments, &run] {
    run = [arguments] { return cli::run_command([&] { return init(*arguments); }); };
  });
}

struct DoctorArguments {
  doctor::ExaminedRun subject;
  std::string calibration;  ///< file to write; empty: the machine is examined instead
  bool links_only = false, json = false;
};

/// Loads the subject's config. If none is named, the first override is in its place.
config::Config config_of(const doctor::ExaminedRun& subject) {
  std::vector<std::string> overrides = subject.overrides;
  const std::string& first = subject.config_path;
  if (!first.empty() && first.find('=') == std::string::npos) return config::load_config(first, overrides);
  if (!first.empty()) overrides.insert(overrides.begin(), first);
  return config::parse_config("[data]\ntrain = [\"none\"]\n", "doctor --calibrate", overrides);
}

int calibrate(const DoctorArguments& arguments) {
  util::MappedAllocator::install();  // the allocator of training
  const config::Config config = config_of(arguments.subject);
  const comm::LaunchEnvironment environment = comm::launch_environment(config.comm);
  const c10::Device device = train::prepare_device(config.training, environment.local_rank,
                                                   /*warns=*/environment.rank == 0);
  const auto communicator = comm::make_communicator(environment, config.comm, nullptr, {}, device);
  const simulate::Calibration calibration = doctor::calibrate(
      config, *communicator, {.local_world_size = environment.local_world_size}, arguments.links_only);
  comm::agree(*communicator, "end of the calibration", [&] {
    if (environment.rank == 0) cli::print(doctor::write_calibration(arguments.calibration, calibration));
  });
  return 0;
}

void add_doctor(CLI::App& app, std::function<int()>& run) {
  CLI::App* command = app.add_subcommand(
      "doctor", "check this machine for a run, and print findings that can be pasted into a bug report");
  auto arguments = std::make_shared<DoctorArguments>();
  command
      ->add_option("config", arguments->subject.config_path,
                   "TOML file of a run, to check its folder, disk and options too")
      ->check(cli::not_empty());
  command->add_option("overrides", arguments->subject.overrides, "section.key=value, overrides the file");
  CLI::Option* calibration = command->add_option(
      "--calibrate", arguments->calibration,
      "instead: measure kernels, and under a launcher the links between ranks, and write this file for "
      "fsdp-plan --simulate; with a config, its products and its backend");
  calibration->check(cli::not_empty());
  command
      ->add_flag(
          "--links-only", arguments->links_only,
          "with --calibrate: add links between ranks to the file, whose compute stays; ranks may then be more than cores")
      ->needs(calibration);
  command->add_flag("--json", arguments->json, "print one JSON object instead of text")
      ->excludes(calibration);
  command->callback([arguments, &run] {
    run = [arguments] {
      if (!arguments->calibration.empty()) return cli::run_command([&] { return calibrate(*arguments); });
      const std::vector<doctor::Finding> findings = doctor::examine(arguments->subject);
      cli::print(arguments->json ? report_json(findings) : report_text(findings));
      return doctor::exit_code(findings);
    };
  });
}

void add_keys(CLI::App& app, std::function<int()>& run) {
  CLI::App* command = app.add_subcommand("keys", "print every key of the config as a page of Markdown");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "print one JSON object instead");
  command->callback([json, &run] {
    run = [json] {
      return cli::run_command([&] {
        cli::print(*json ? config::key_reference_json() : config::key_reference_markdown());
        return 0;
      });
    };
  });
}

struct CompareArguments {
  std::string first, second;
  bool json = false;
};

void add_compare(CLI::App& app, std::function<int()>& run) {
  CLI::App* command = app.add_subcommand(
      "compare",
      "print which differences of two runs are larger than noise: losses at the steps that both have logged, "
      "speed and memory, with the keys that differ and what makes the comparison unfair. The exit code is 0 "
      "whatever the verdict");
  auto arguments = std::make_shared<CompareArguments>();
  command->add_option("RUN1", arguments->first, "folder of the run that is compared with")
      ->required()
      ->check(cli::not_empty());
  command->add_option("RUN2", arguments->second, "folder of the run that the verdict is about")
      ->required()
      ->check(cli::not_empty());
  command->add_flag("--json", arguments->json, "print one JSON object instead of text");
  command->callback([arguments, &run] {
    run = [arguments] {
      return cli::run_command([&] {
        const report::Comparison comparison =
            report::compare_runs(report::read_run(arguments->first), report::read_run(arguments->second));
        cli::print(arguments->json ? comparison_json(comparison) : comparison_text(comparison));
        return 0;
      });
    };
  });
}

}  // namespace

void add_train_commands(CLI::App& app, std::function<int()>& run) {
  add_init(app, run);
  add_keys(app, run);
  add_doctor(app, run);
  add_compare(app, run);
}

}  // namespace fsdp::apps
