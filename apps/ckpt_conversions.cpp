// fsdp-ckpt export and import: conversions to and from formats of other programs.

#include <iostream>

#include "base/gguf/format.h"
#include "base/util/error.h"
#include "base/util/file.h"
#include "base/util/log.h"
#include "base/util/text.h"
#include "ckpt_command.h"
#include "state/convert/dcp_export.h"
#include "state/convert/dcp_import.h"
#include "state/convert/hugging_face_model.h"
#include "state/convert/peft_folder.h"
#include "state/description/described_model.h"
#include "state/gguf_export/adapter.h"
#include "state/gguf_export/export.h"
#include "state/weights/adapter.h"
#include "state/weights/stored_model.h"
#include "tools/generate/load.h"

namespace fsdp::apps {
namespace fs = std::filesystem;
using nlohmann::json;
using util::ErrorKind;

namespace {

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
  apps::print(static_cast<const checkpoint::ShardedResult&>(result), false);
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

/// Returns the tokenizer that the user names, or the model's.
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
                                          .saturate = arguments.saturate,
                                          .overwrite = arguments.force,
                                          .progress = progress}),
               arguments.as_json);
}

/// Says so if the base of the adapters in a checkpoint has fewer tokens than the model that they change.
void report_added_tokens(const fs::path& folder) {
  const auto model = checkpoint::described_model(folder);
  if (!model) return;
  const auto adapter = checkpoint::described_adapter(model->config, model->where);
  if (!adapter || !util::is_there(adapter->base)) return;
  const auto base = checkpoint::described_model(adapter->base);
  const int64_t tokens = model->options.vocab_size;
  if (!base || base->options.vocab_size >= tokens) return;
  util::log_warning(
      util::concat("the base ", adapter->base, " has ", base->options.vocab_size,
                   " tokens, and the model of these adapters ", tokens,
                   ", whose new rows are their mean; give the base as many before it loads the adapters (in "
                   "transformers, base.resize_token_embeddings(",
                   tokens,
                   "), which draws rows close to the mean), or write the "
                   "whole model with --merge"));
}

int export_gguf_adapter(const Arguments& arguments) {
  refuse_options({{"--tokenizer", arguments.tokenizer}}, "the whole model");
  const auto type = util::parse_enum<gguf::TensorType>(arguments.type).value_or(gguf::TensorType::kF32);
  const fs::path folder = chosen_checkpoint(arguments.source);
  report_added_tokens(folder);
  const gguf::AdapterFile file = gguf::export_adapter({.checkpoint_folder = folder,
                                                       .output = arguments.output,
                                                       .type = type,
                                                       .saturate = arguments.saturate,
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
                                       .saturate = arguments.saturate,
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

}  // namespace

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
      ->check(cli::one_of(gguf::written_type_names()));
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
      const fs::path folder = chosen_checkpoint(arguments.source);
      report_added_tokens(folder);
      return print(checkpoint::export_adapter({.checkpoint_folder = folder,
                                               .output = arguments.output,
                                               .dtype = chosen_dtype(arguments),
                                               .saturate = arguments.saturate,
                                               .overwrite = arguments.force}),
                   arguments.as_json, "PEFT's config of the adapters");
    }
    return print(checkpoint::export_model(chosen_checkpoint(arguments.source), arguments.output,
                                          {.dtype = chosen_dtype(arguments),
                                           .merge = arguments.merge,
                                           .ema = arguments.ema,
                                           .saturate = arguments.saturate,
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
  command.positional("WEIGHTS", command->source,
                     "a folder with config.json and safetensors, one such file, a GGUF file, or a folder of "
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
                                            .saturate = arguments.saturate,
                                            .progress = progress};
    if (checkpoint::is_dcp_folder(request.source)) {
      return print(checkpoint::import_dcp({request, arguments.samples_seen}), arguments.as_json);
    }
    if (arguments.samples_seen) {
      util::fail(ErrorKind::kUsage,
                 "--samples-seen: expected only with a folder of torch.distributed.checkpoint; found ",
                 arguments.source, "; leave it out");
    }
    return print(checkpoint::import_model(request), arguments.as_json);
  });
}

}  // namespace fsdp::apps
