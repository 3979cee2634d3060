#include "ckpt_commands.h"

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "checkpoint/adapter.h"
#include "checkpoint/average.h"
#include "checkpoint/consolidate.h"
#include "checkpoint/dcp_export.h"
#include "checkpoint/dcp_import.h"
#include "checkpoint/described_model.h"
#include "checkpoint/diff.h"
#include "checkpoint/folders.h"
#include "checkpoint/hugging_face_config.h"
#include "checkpoint/hugging_face_model.h"
#include "checkpoint/inspect.h"
#include "checkpoint/manifest.h"
#include "checkpoint/peft_folder.h"
#include "checkpoint/sharded_writer.h"
#include "checkpoint/stored_model.h"
#include "cli/program.h"
#include "config/print.h"
#include "config/value.h"
#include "generate/load.h"
#include "gguf/adapter.h"
#include "gguf/export.h"
#include "gguf/import.h"
#include "gguf/reader.h"
#include "util/dtype.h"
#include "util/error.h"
#include "util/log.h"
#include "util/progress_bar.h"
#include "util/text.h"

namespace fsdp::apps {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using util::ErrorKind;

constexpr const char* kAboutCheckpoint =
    "a step's folder, or a run's output folder (its newest complete checkpoint)";
constexpr const char* kAboutAny =
    "a checkpoint, a run's output folder, a safetensors file or a folder of them";

/// All that any command takes.
struct Arguments {
  std::string source, other, output, dtype, config, format = "safetensors", max_shard_size, type, tokenizer;
  std::string layout, model_key, optimizer_key;
  std::vector<std::string> sources;
  std::optional<double> tolerance;
  std::optional<int64_t> last, samples_seen, parts;
  int64_t world_size = 1;
  bool force = false, optimizer = false, ema = false, adapter = false, merge = false, as_json = false;
};

/// A command under construction.
class Command {
 public:
  Command(CLI::App& app, const char* name, const char* about)
      : parser_(app.add_subcommand(name, about)), arguments_(std::make_shared<Arguments>()) {
    parser_->add_flag("--json", arguments_->as_json, "print the result as JSON");
  }
  Arguments* operator->() const { return arguments_.get(); }
  CLI::Option* positional(const char* name, std::string& value, const char* about) const {
    return parser_->add_option(name, value, about)->required()->check(cli::not_empty());
  }
  template <typename Value>
  CLI::Option* option(const char* name, Value& value, const char* about) const {
    return parser_->add_option(name, value, about);
  }
  void flag(const char* name, bool& value, const char* about) const { parser_->add_flag(name, value, about); }
  void dtype_option(const char* about = "cast floating-point weights to this type") const {
    option("--dtype", arguments_->dtype, about)
        ->check(cli::one_of({"float32", "bfloat16", "float16", "float64"}));
  }
  void size_option() const {
    option("--max-shard-size", arguments_->max_shard_size,
           "split into files of at most this size, such as 5GB, with model.safetensors.index.json");
  }
  CLI::Option* world_size_option() const {
    return option("--world-size", arguments_->world_size, "number of files to shard the tensors into");
  }
  /// `body` gets the arguments and where progress goes.
  CkptCommand runs(std::function<int(const Arguments&, const util::ByteProgress&)> body) const {
    return {parser_, [arguments = arguments_, body = std::move(body)] {
              util::ByteProgressBar bar(util::progress_on_stderr());
              return body(*arguments, [&bar](auto phase, int64_t done_bytes, int64_t total_bytes) {
                bar.show(phase, done_bytes, total_bytes);
                if (done_bytes == total_bytes) bar.clear();
              });
            }};
  }

 private:
  CLI::App* parser_;
  std::shared_ptr<Arguments> arguments_;
};

/// The step folder that the user means; says so when it is one of several.
fs::path chosen_checkpoint(const std::string& path) {
  std::error_code error;
  if (fs::exists(fs::path(path) / checkpoint::kManifestName, error)) return path;  // whole or not
  fs::path folder = checkpoint::checkpoint_folder(path);
  if (folder != fs::path(path)) util::log_info("using the newest complete checkpoint, " + folder.string());
  return folder;
}

std::optional<c10::ScalarType> chosen_dtype(const Arguments& arguments) {
  if (arguments.dtype.empty()) return std::nullopt;
  return util::dtype_from_name(arguments.dtype);
}

int64_t chosen_max_bytes(const Arguments& arguments) {
  return arguments.max_shard_size.empty() ? 0 : checkpoint::parse_size(arguments.max_shard_size);
}

/// Paths and names from files may hold bytes that are no text.
std::string text_of(const json& value) {
  return value.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

/// Options that have no meaning with the chosen format.
void refuse_options(const std::vector<std::pair<const char*, std::string>>& options, const char* needed) {
  for (const auto& [option, value] : options) {
    if (value.empty()) continue;
    util::fail(ErrorKind::kUsage, option, ": expected only with ", needed, "; found \"", value,
               "\"; leave it out");
  }
}

int print(const checkpoint::ConsolidateResult& result, bool as_json,
          const char* about_config = "the model's config") {
  if (as_json) {
    std::cout << text_of({{"output", result.output.string()},
                          {"config", result.config ? json(result.config->string()) : json()},
                          {"model_files", result.model_files},
                          {"files", result.files},
                          {"tensors", result.tensors},
                          {"bytes", result.bytes}});
    return 0;
  }
  std::cout << result.output.string() << ": " << result.tensors << " tensors, "
            << util::human_bytes(result.bytes);
  if (result.files > 1) std::cout << " in " << result.files << " files";
  std::cout << "\n";
  if (result.config) std::cout << result.config->string() << ": " << about_config << "\n";
  if (!result.model_files.empty()) {
    std::cout << "also copied, from the model that the run started from: "
              << util::join(result.model_files, ", ") << "\n";
  }
  return 0;
}

int print(const checkpoint::ShardedResult& result, bool as_json) {
  if (as_json) {
    std::cout << text_of({{"output", result.folder.string()},
                          {"files", result.files},
                          {"tensors", result.tensors},
                          {"bytes", result.bytes}});
    return 0;
  }
  std::cout << result.folder.string() << ": " << result.tensors << " tensors, "
            << util::human_bytes(result.bytes) << ", world size " << result.files << "\n";
  return 0;
}

int print(const checkpoint::DcpImportResult& result, bool as_json) {
  if (as_json) {
    std::cout << text_of({{"output", result.folder.string()},
                          {"files", result.files},
                          {"tensors", result.tensors},
                          {"bytes", result.bytes},
                          {"step", result.step},
                          {"optimizer", result.has_optimizer},
                          {"param_groups", result.param_groups},
                          {"samples_seen", result.samples_seen ? json(*result.samples_seen) : json()}});
    return 0;
  }
  print(static_cast<const checkpoint::ShardedResult&>(result), false);
  if (!result.has_optimizer) {
    std::cout << "weights only, of step " << result.step << "\n";
    return 0;
  }
  std::cout << "weights and optimizer state of step " << result.step << "; a run goes on from sample "
            << result.samples_seen.value_or(0)
            << (result.samples_seen
                    ? ""
                    : ", because the position in the data is not known (--samples-seen gives it)")
            << "\n";
  for (const json& group : result.param_groups) {
    std::cout << "[optimizer] of the run was: ";
    const char* separator = "";
    for (const auto& [key, value] : group.items()) {
      if (key == "params") continue;
      std::cout << std::exchange(separator, ", ") << key << " = " << value.dump();
    }
    if (group.contains("params")) std::cout << ", for " << group["params"].size() << " parameters";
    std::cout << "\n";
  }
  return 0;
}

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
                                           .overwrite = arguments.force,
                                           .full = arguments.format == "full",
                                           .optimizer = arguments.optimizer,
                                           .max_file_bytes = chosen_max_bytes(arguments),
                                           .progress = progress};
    return print(checkpoint::consolidate(chosen_checkpoint(arguments.source), arguments.output, options),
                 arguments.as_json);
  });
}

int print(const gguf::ExportResult& result, bool as_json) {
  if (as_json) {
    std::cout << text_of({{"output", result.output.string()},
                          {"type", util::name_of(result.type)},
                          {"tokenizer", result.tokenizer},
                          {"tensors", result.tensors},
                          {"bytes", result.bytes}});
    return 0;
  }
  std::cout << result.output.string() << ": " << result.tensors << " tensors in "
            << util::name_of(result.type) << ", " << util::human_bytes(result.bytes) << ", ";
  if (result.tokenizer == gguf::kWithoutVocabulary) {
    std::cout << "without tokenizer\n";
  } else {
    std::cout << "with a tokenizer of llama.cpp's kind " << result.tokenizer << "\n";
  }
  return 0;
}

/// The tokenizer that the user names, or that of the model.
std::string chosen_tokenizer(const Arguments& arguments, const checkpoint::StoredModel& model) {
  if (!arguments.tokenizer.empty()) return arguments.tokenizer;
  if (const auto name = generate::tokenizer_name(model)) return *name;
  util::log_info(util::concat("the model has no tokenizer: ", model.folder.string(),
                              " has none and belongs to no run; --tokenizer names one"));
  return gguf::kNoTokenizer;
}

int export_gguf(const Arguments& arguments, const util::ByteProgress& progress) {
  const bool is_checkpoint =
      checkpoint::format_of(arguments.source) == checkpoint::WeightsFormat::kCheckpoint;
  const fs::path source = is_checkpoint ? chosen_checkpoint(arguments.source) : fs::path(arguments.source);
  const checkpoint::StoredModel model = checkpoint::open_model(source, arguments.ema);
  const bool has_adapters = checkpoint::described_adapter(model.config, model.where).has_value();
  if (has_adapters != arguments.merge) {
    util::fail(util::ErrorKind::kUsage, source.string(),
               has_adapters
                   ? " holds adapters; choose --merge for the whole model or --adapter for them alone"
                   : " holds all weights of a model, without adapters; leave out --merge");
  }
  return print(gguf::export_model(model, {.output = arguments.output,
                                          .type = util::parse_enum<gguf::TensorType>(arguments.type),
                                          .tokenizer = chosen_tokenizer(arguments, model),
                                          .overwrite = arguments.force,
                                          .progress = progress}),
               arguments.as_json);
}

int export_gguf_adapter(const Arguments& arguments) {
  refuse_options({{"--tokenizer", arguments.tokenizer}}, "the whole model");
  const auto type = util::parse_enum<gguf::TensorType>(arguments.type).value_or(gguf::TensorType::kF32);
  const gguf::AdapterFile file =
      gguf::export_adapter({.checkpoint_folder = chosen_checkpoint(arguments.source),
                            .output = arguments.output,
                            .type = type,
                            .overwrite = arguments.force});
  if (arguments.as_json) {
    std::cout << text_of({{"output", arguments.output},
                          {"type", util::name_of(type)},
                          {"tensors", file.tensors},
                          {"bytes", file.bytes}});
  } else {
    std::cout << arguments.output << ": " << file.tensors << " tensors of adapters in " << util::name_of(type)
              << ", " << util::human_bytes(file.bytes) << "\n";
  }
  return 0;
}

int export_dcp(const Arguments& arguments, const util::ByteProgress& progress) {
  using checkpoint::DcpLayout;
  const auto layout = util::parse_enum<DcpLayout>(arguments.layout).value_or(DcpLayout::kNested);
  if (layout == DcpLayout::kTorchtitan) {
    refuse_options({{"--model-key", arguments.model_key}, {"--optimizer-key", arguments.optimizer_key}},
                   "--layout nested or flat");
  }
  checkpoint::DcpExportRequest request{.checkpoint_folder = chosen_checkpoint(arguments.source),
                                       .output = arguments.output,
                                       .layout = layout,
                                       .world_size = arguments.parts.value_or(0),
                                       .dtype = chosen_dtype(arguments),
                                       .overwrite = arguments.force,
                                       .progress = progress};
  if (!arguments.model_key.empty()) request.model_key = arguments.model_key;
  if (!arguments.optimizer_key.empty()) request.optimizer_key = arguments.optimizer_key;
  const checkpoint::DcpExportResult result = checkpoint::export_dcp(request);
  if (arguments.as_json) {
    std::cout << text_of({{"output", result.folder.string()},
                          {"files", result.files},
                          {"tensors", result.tensors},
                          {"bytes", result.bytes},
                          {"optimizer", result.has_optimizer}});
  } else {
    std::cout << result.folder.string() << ": " << result.tensors << " tensors, "
              << util::human_bytes(result.bytes) << " in " << result.files << " files, "
              << (result.has_optimizer ? "with the optimizer's state\n" : "weights only\n");
  }
  return 0;
}

CkptCommand add_export(CLI::App& app) {
  Command command(
      app, "export",
      "writes a built-in model for Hugging Face's transformers or llama.cpp, or a run for PyTorch's FSDP2");
  command.positional(
      "CHECKPOINT", command->source,
      "a step's folder, or a run's output folder (its newest complete checkpoint); with --format "
      "gguf also a Hugging Face folder");
  command.positional("OUTPUT", command->output,
                     "a folder, which receives config.json, model.safetensors and the run's tokenizer; with "
                     "--format gguf a file");
  command
      .option(
          "--format", command->format,
          "safetensors: a folder for transformers; gguf: one file for llama.cpp, with the tokenizer in it; dcp: a "
          "folder for torch.distributed.checkpoint, with the state of Adam or AdamW")
      ->check(cli::one_of({"safetensors", "gguf", "dcp"}));
  command.dtype_option(
      "cast floating-point weights to this type; default: the type of the model that the run started from");
  command.size_option();
  command.flag(
      "--adapter", command->adapter,
      "of a run with lora.rank: write its adapters alone, as a folder that PEFT loads or, with --format gguf, as a file for llama.cpp's --lora");
  command.flag("--merge", command->merge,
               "of a run with lora.rank: write the whole model, with the adapters merged into its weights");
  command
      .option(
          "--type", command->type,
          "with --format gguf: the type of matrices; default: the type of the model that the run started from")
      ->check(cli::one_of(util::names_of_enum<gguf::TensorType>()));
  command.option(
      "--tokenizer", command->tokenizer,
      "with --format gguf: the tokenizer, if it is not the run's: \"none\", \"bytes\", a folder or a file");
  command.flag("--ema", command->ema,
               "write the moving averages of the weights (optimizer.ema_decay) instead of the weights");
  command
      .option(
          "--layout", command->layout,
          "with --format dcp: the keys of the state dict: nested (default) or flat, as get_state_dict() returns the "
          "optimizer's, or torchtitan's")
      ->check(cli::one_of(util::names_of_enum<checkpoint::DcpLayout>()));
  command.option("--model-key", command->model_key,
                 "with --format dcp: the key of the model's state dict, such as app.model; default: model");
  command.option("--optimizer-key", command->optimizer_key,
                 "with --format dcp: the key of the optimizer's; default: optimizer");
  command
      .option(
          "--world-size", command->parts,
          "with --format dcp: number of files to cut the tensors into; default: as many as the checkpoint has")
      ->check(cli::between(1, 100'000));
  command.flag("--force", command->force, "overwrite existing output of this format");
  return command.runs([](const Arguments& arguments, const util::ByteProgress& progress) {
    if (arguments.adapter && (arguments.merge || arguments.ema || !arguments.max_shard_size.empty())) {
      util::fail(
          util::ErrorKind::kUsage,
          "--adapter cannot be combined with --merge, --ema or --max-shard-size; leave one of them out");
    }
    if (arguments.format == "dcp") {
      refuse_options({{"--type", arguments.type},
                      {"--tokenizer", arguments.tokenizer},
                      {"--max-shard-size", arguments.max_shard_size},
                      {"--adapter", arguments.adapter ? "true" : ""},
                      {"--merge", arguments.merge ? "true" : ""},
                      {"--ema", arguments.ema ? "true" : ""}},
                     "--format safetensors or gguf");
      return export_dcp(arguments, progress);
    }
    refuse_options({{"--layout", arguments.layout},
                    {"--model-key", arguments.model_key},
                    {"--optimizer-key", arguments.optimizer_key},
                    {"--world-size", arguments.parts ? std::to_string(*arguments.parts) : ""}},
                   "--format dcp");
    if (arguments.format == "gguf") {
      refuse_options({{"--dtype", arguments.dtype}, {"--max-shard-size", arguments.max_shard_size}},
                     "--format safetensors; the type of a GGUF file is chosen by --type");
      return arguments.adapter ? export_gguf_adapter(arguments) : export_gguf(arguments, progress);
    }
    refuse_options({{"--type", arguments.type}, {"--tokenizer", arguments.tokenizer}}, "--format gguf");
    if (arguments.adapter) {
      return print(checkpoint::export_adapter({.checkpoint_folder = chosen_checkpoint(arguments.source),
                                               .output = arguments.output,
                                               .dtype = chosen_dtype(arguments),
                                               .overwrite = arguments.force}),
                   arguments.as_json, "PEFT's config of the adapters");
    }
    return print(checkpoint::export_model({.checkpoint_folder = chosen_checkpoint(arguments.source),
                                           .output = arguments.output,
                                           .dtype = chosen_dtype(arguments),
                                           .merge = arguments.merge,
                                           .ema = arguments.ema,
                                           .overwrite = arguments.force,
                                           .max_file_bytes = chosen_max_bytes(arguments),
                                           .progress = progress}),
                 arguments.as_json);
  });
}

CkptCommand add_import(CLI::App& app) {
  Command command(
      app, "import",
      "converts a model of Hugging Face's, a GGUF file, or a checkpoint of PyTorch's FSDP2 to a checkpoint");
  command.positional(
      "WEIGHTS", command->source,
      "a folder with config.json and safetensors, one such file, an unquantised GGUF file, or a folder of "
      "torch.distributed.checkpoint (.metadata), whose optimizer state is converted too");
  command.positional("CHECKPOINT", command->output, "the new checkpoint's folder");
  command.option("--config", command->config,
                 "config.json; default: the one beside the weights, or what a GGUF file says of its model");
  command.world_size_option();
  command.dtype_option();
  command
      .option(
          "--samples-seen", command->samples_seen,
          "of a folder of torch.distributed.checkpoint: samples that the run has read, where it goes on; default: "
          "what the folder says, or 0")
      ->check(cli::at_least(0));
  return command.runs([](const Arguments& arguments, const util::ByteProgress& progress) {
    const checkpoint::ImportRequest request{.source = arguments.source,
                                            .config = arguments.config,
                                            .output = arguments.output,
                                            .world_size = arguments.world_size,
                                            .dtype = chosen_dtype(arguments),
                                            .progress = progress};
    if (checkpoint::is_dcp_folder(request.source)) {
      return print(checkpoint::import_dcp({request, arguments.samples_seen}), arguments.as_json);
    }
    if (arguments.samples_seen) {
      util::fail(ErrorKind::kUsage,
                 "--samples-seen: expected only with a folder of torch.distributed.checkpoint; found ",
                 arguments.source, "; leave it out");
    }
    const auto import = gguf::is_gguf(request.source) ? gguf::import_model : checkpoint::import_model;
    return print(import(request), arguments.as_json);
  });
}

CkptCommand add_inspect(CLI::App& app) {
  Command command(app, "inspect", "lists names, shapes, types and sizes");
  command.positional("PATH", command->source, kAboutAny);
  return command.runs([](const Arguments& arguments, const util::ByteProgress&) {
    const checkpoint::Description description = checkpoint::describe(arguments.source);
    (arguments.as_json ? checkpoint::write_as_json : checkpoint::write_as_text)(description, std::cout);
    return 0;
  });
}

/// What model.init_from needs beside it for the model of a plug-in.
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

CkptCommand add_average(CLI::App& app) {
  Command command(app, "average", "writes the mean of the weights of several checkpoints");
  command.option("CHECKPOINT", command->sources, kAboutAny)->required()->check(cli::not_empty());
  command
      .option("--output", command->output,
              "a .safetensors file, or the folder of a new checkpoint of weights only")
      ->required()
      ->check(cli::not_empty());
  command
      .option("--last", command->last, "average this many newest checkpoints of the run named by CHECKPOINT")
      ->check(cli::between(2, 1'000'000));
  return command.runs([](const Arguments& arguments, const util::ByteProgress& progress) {
    const std::vector<fs::path> inputs = averaged_inputs(arguments);
    const checkpoint::AverageResult result =
        checkpoint::average({.inputs = inputs, .output = arguments.output, .progress = progress});
    if (arguments.as_json) {
      json paths = json::array();
      for (const fs::path& input : inputs) paths.push_back(input.string());
      std::cout << text_of({{"output", result.output.string()},
                            {"inputs", paths},
                            {"tensors", result.tensors},
                            {"bytes", result.bytes}});
    } else {
      std::cout << result.output.string() << ": the mean of " << inputs.size() << " checkpoints, "
                << result.tensors << " tensors, " << util::human_bytes(result.bytes) << "\n";
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
