#include "ckpt_commands.h"

#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "base/util/error.h"
#include "base/util/log.h"
#include "base/util/text.h"
#include "ckpt_command.h"
#include "setup/config/print.h"
#include "setup/config/value.h"
#include "state/convert/average.h"
#include "state/convert/consolidate.h"
#include "state/convert/diff.h"
#include "state/convert/inspect.h"
#include "state/convert/sharded_writer.h"
#include "state/description/described_model.h"
#include "state/hugging_face/hugging_face_config.h"
#include "state/manifest/folders.h"
#include "state/weights/stored_model.h"

namespace fsdp::apps {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using util::ErrorKind;

CkptCommand add_consolidate(CLI::App& app) {
  Command command(app, "consolidate",
                  "writes the weights as safetensors, or everything as a checkpoint of one file");
  command.positional("CHECKPOINT", command->source, kAboutCheckpoint);
  command.positional("OUTPUT", command->output,
                     "a .safetensors file, or a folder, which also receives config.json");
  command
      .option("--format", command->format,
              "safetensors, or full: a checkpoint with whole tensors in one HDF5 file")
      ->check(cli::one_of({"safetensors", "full"}));
  command.dtype_option();
  command.size_option();
  command.flag("--optimizer", command->optimizer,
               "with --format full: include the optimizer's state, so that runs can resume from it");
  command.flag("--ema", command->ema,
               "write the moving averages of the weights (optimizer.ema_decay) instead of the weights");
  command.flag("--force", command->force, "overwrite existing safetensors");
  return command.runs([](const Arguments& arguments, const util::ByteProgress& progress) {
    checkpoint::ConsolidateOptions options{.dtype = chosen_dtype(arguments),
                                           .ema = arguments.ema,
                                           .saturate = arguments.saturate,
                                           .overwrite = arguments.force,
                                           .full = arguments.format == "full",
                                           .optimizer = arguments.optimizer,
                                           .max_file_bytes = chosen_max_bytes(arguments),
                                           .progress = progress};
    return print(checkpoint::consolidate(chosen_checkpoint(arguments.source), arguments.output, options),
                 arguments.as_json);
  });
}

CkptCommand add_inspect(CLI::App& app) {
  Command command(app, "inspect", "lists names, shapes, types and sizes");
  command.positional("PATH", command->source, kAboutAny);
  return command.runs([](const Arguments& arguments, const util::ByteProgress&) {
    const checkpoint::CheckpointDescription description = checkpoint::describe(arguments.source);
    (arguments.as_json ? checkpoint::write_as_json : checkpoint::write_as_text)(description, std::cout);
    return 0;
  });
}

/// Returns the keys that model.init_from needs beside it for the model of a plug-in.
std::string plugin_section(const checkpoint::StoredModel& stored, const std::string& source) {
  const std::string head = "[model]\n";
  std::string text = stored.plugin_config;
  const size_t at = text.find(head);
  if (at != std::string::npos) {
    text.insert(at + head.size(), "init_from = " + config::quoted_text(source) + "\n");
  }
  return "[run]\nplugins = " + config::toml_text(stored.plugins) + "\n" + text;
}

CkptCommand add_config(CLI::App& app) {
  Command command(app, "config", "prints the [model] section of a config that starts from these weights");
  command.positional("PATH", command->source,
                     "a checkpoint, a run's output folder, or a Hugging Face folder or safetensors file");
  return command.runs([](const Arguments& arguments, const util::ByteProgress&) {
    const checkpoint::StoredModel stored = checkpoint::open_model(arguments.source);
    if (!stored.plugin_config.empty()) {
      std::cout << (arguments.as_json ? text_of(stored.config) : plugin_section(stored, arguments.source));
      return 0;
    }
    config::Config config;
    config.model = stored.options;
    config.model.init_from = arguments.source;
    if (arguments.as_json) {
      std::cout << text_of(checkpoint::hugging_face_config(config.model));
    } else {
      std::cout << config::section_toml(config, "model");
    }
    return 0;
  });
}

CkptCommand add_verify(CLI::App& app) {
  Command command(app, "verify", "checks all hashes, and that nothing is missing");
  command.positional("CHECKPOINT", command->source, kAboutCheckpoint);
  return command.runs([](const Arguments& arguments, const util::ByteProgress& progress) {
    const bool is_dcp = checkpoint::is_dcp_folder(arguments.source);
    const fs::path folder = is_dcp ? fs::path(arguments.source) : chosen_checkpoint(arguments.source);
    std::vector<std::string> damage = checkpoint::find_damage(folder, progress);
    if (arguments.as_json) {
      json result{{"path", folder.string()}, {"whole", damage.empty()}, {"problems", damage}};
      std::cout << text_of(result) << std::flush;
    } else if (damage.empty()) {
      std::cout << folder.string()
                << " is intact: hashes match, every element of every tensor is present once\n";
    }
    if (damage.empty()) return 0;
    for (const std::string& line : damage) util::log_error(line);
    util::fail(ErrorKind::kCheckpoint, folder.string(), " is not intact: ", damage.size(),
               " problem(s); use another checkpoint or restore the files named above");
  });
}

CkptCommand add_diff(CLI::App& app) {
  Command command(app, "diff", "compares two checkpoints, or weights; exit code 0: equal, 1: different");
  command.positional("A", command->source, kAboutAny);
  command.positional("B", command->other, kAboutAny);
  command
      .option("--tolerance", command->tolerance,
              "treat values that differ by at most this much as equal, whatever their types")
      ->check(cli::at_least(0));
  return command.runs([](const Arguments& arguments, const util::ByteProgress& progress) {
    checkpoint::Difference difference = checkpoint::diff(
        arguments.source, arguments.other, {.tolerance = arguments.tolerance, .progress = progress});
    std::cout << (arguments.as_json ? text_of(checkpoint::diff_as_json(difference))
                                    : checkpoint::diff_as_text(difference));
    return difference.empty() ? 0 : kExitDifferent;
  });
}

std::vector<fs::path> averaged_inputs(const Arguments& arguments) {
  std::vector<fs::path> inputs;
  if (!arguments.last) {
    for (const std::string& source : arguments.sources) inputs.emplace_back(source);
    return inputs;
  }
  if (arguments.sources.size() != 1) {
    util::fail(ErrorKind::kUsage, "--last: expected the output folder of one run; found ",
               arguments.sources.size(), " paths; name one run, or leave out --last");
  }
  inputs = checkpoint::last_checkpoints(arguments.sources.front(), *arguments.last);
  for (const fs::path& input : inputs) util::log_info("averaging " + input.string());
  return inputs;
}

checkpoint::MergeOptions merge_options(const Arguments& arguments) {
  checkpoint::MergeOptions options{.weights = arguments.weights,
                                   .t = arguments.t,
                                   .density = arguments.density,
                                   .lambda = arguments.lambda};
  options.method = arguments.method;
  if (!arguments.normalize.empty()) options.normalize = arguments.normalize == "true";
  return options;
}

CkptCommand add_average(CLI::App& app) {
  Command command(app, "average", "makes one model of several, by default the mean of their weights");
  command.option("CHECKPOINT", command->sources, kAboutAny)->required()->check(cli::not_empty());
  command
      .option("--output", command->output,
              "a .safetensors file, or the folder of a new checkpoint of weights only")
      ->required()
      ->check(cli::not_empty());
  command
      .option("--last", command->last, "average this many newest checkpoints of the run named by CHECKPOINT")
      ->check(cli::between(2, 1'000'000));
  command
      .option("--method", command->method,
              "linear, slerp, or task_arithmetic or ties, which add differences to --base; as mergekit's")
      ->check(cli::one_of(util::names_of_enum<checkpoint::MergeMethod>()));
  command.option("--weights", command->weights, "a factor for each CHECKPOINT: 0.7,0.3; default: 1 each")
      ->delimiter(',');
  command.option("--base", command->base, "the model from which the others were tuned");
  command.option("--t", command->t, "slerp: from 0, the first model, to 1, the second; default: 0.5");
  command.option("--density", command->density,
                 "ties: share of each difference's elements, the largest, that is used; default: 1");
  command.option("--lambda", command->lambda, "task_arithmetic, ties: factor of what is added; default: 1");
  command
      .option("--normalize", command->normalize,
              "whether sums are divided by those of their weights; default: false for task_arithmetic")
      ->check(cli::one_of({"true", "false"}));
  return command.runs([](const Arguments& arguments, const util::ByteProgress& progress) {
    const std::vector<fs::path> inputs = averaged_inputs(arguments);
    checkpoint::AverageRequest request{.inputs = inputs,
                                       .output = arguments.output,
                                       .progress = progress,
                                       .merge = merge_options(arguments)};
    if (!arguments.base.empty()) request.base = arguments.base;
    const checkpoint::AverageResult result = checkpoint::average(request);
    if (arguments.as_json) {
      json paths = json::array();
      for (const fs::path& input : inputs) paths.push_back(input.string());
      std::cout << text_of({{"output", result.output.string()},
                            {"inputs", paths},
                            {"method", arguments.method},
                            {"tensors", result.tensors},
                            {"bytes", result.bytes}});
    } else {
      std::cout << result.output.string() << ": "
                << (arguments.method == "linear" ? "the mean" : arguments.method) << " of " << inputs.size()
                << (inputs.size() == 1 ? " checkpoint, " : " checkpoints, ") << result.tensors << " tensors, "
                << util::human_bytes(result.bytes) << "\n";
    }
    return 0;
  });
}

CkptCommand add_reshard(CLI::App& app) {
  Command command(app, "reshard", "rewrites a checkpoint for another number of processes");
  command.positional("CHECKPOINT", command->source, kAboutCheckpoint);
  command.positional("OUTPUT", command->output, "the new checkpoint's folder");
  command.world_size_option()->required();
  return command.runs([](const Arguments& arguments, const util::ByteProgress& progress) {
    return print(checkpoint::reshard(chosen_checkpoint(arguments.source), arguments.output,
                                     arguments.world_size, progress),
                 arguments.as_json);
  });
}

}  // namespace

std::vector<CkptCommand> add_ckpt_commands(CLI::App& app) {
  return {add_consolidate(app), add_export(app), add_import(app),  add_config(app), add_inspect(app),
          add_verify(app),      add_diff(app),   add_average(app), add_reshard(app)};
}

}  // namespace fsdp::apps
