#include "state/convert/peft_folder.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "base/util/error.h"
#include "base/util/file.h"
#include "model/nn/lora.h"
#include "state/description/described_model.h"
#include "state/manifest/folders.h"
#include "state/manifest/local_weights.h"
#include "state/manifest/staged_output.h"
#include "state/weights/safetensors.h"
#include "state/weights/shard_set.h"

namespace fsdp::checkpoint {
namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr const char* kPeftConfig = "adapter_config.json";
constexpr const char* kPeftWeights = "adapter_model.safetensors";
constexpr const char* kPeftPrefix = "base_model.model.";
constexpr std::string_view kPeftMagnitude = ".lora_magnitude_vector";

/// PEFT's name of an adapter's parameter.
std::string peft_name(std::string parameter) {
  const auto adapter = nn::lora_name(parameter);
  FSDP_CHECK(adapter.has_value(), parameter);
  if (adapter->part == nn::LoraPart::kMagnitude) parameter.resize(parameter.size() - std::strlen(".weight"));
  return kPeftPrefix + parameter;
}

std::string parameter_of_peft(const std::string& name) {
  if (!name.starts_with(kPeftPrefix)) return name;
  const std::string parameter = name.substr(std::strlen(kPeftPrefix));
  return parameter.ends_with(kPeftMagnitude) ? parameter + ".weight" : parameter;
}

json peft_config(const AdapterDescription& adapter) {
  json config = lora_json(adapter.lora);
  config.update({{"peft_type", "LORA"},
                 {"task_type", "CAUSAL_LM"},
                 {"base_model_name_or_path", adapter.base},
                 {"target_modules", adapter.layers},
                 {"fan_in_fan_out", adapter.transposed},
                 {"bias", "none"},
                 {"modules_to_save", nullptr},
                 {"rank_pattern", json::object()},
                 {"alpha_pattern", json::object()},
                 {"init_lora_weights", true},
                 {"inference_mode", true}});
  return config;
}

/// Treatment of a key of PEFT's LoraConfig. Unknown keys are refused unless they are off, which is the
/// default of PEFT's new options.
enum class PeftKey {
  kRead,  ///< read by read_peft_config() or lora_of_json()
  kFree,  ///< the weights in the folder imply it, or it does not change what the adapter computes
  kOff,   ///< changes what the adapter computes unless it is null, false or empty
};
constexpr std::pair<const char*, PeftKey> kPeftKeys[] = {
    {"peft_type", PeftKey::kRead},
    {"r", PeftKey::kRead},
    {"lora_alpha", PeftKey::kRead},
    {"lora_dropout", PeftKey::kRead},
    {"use_rslora", PeftKey::kRead},
    {"use_dora", PeftKey::kRead},
    {"fan_in_fan_out", PeftKey::kRead},
    {"bias", PeftKey::kRead},
    {"init_lora_weights", PeftKey::kRead},
    {"task_type", PeftKey::kFree},
    {"auto_mapping", PeftKey::kFree},
    {"base_model_name_or_path", PeftKey::kFree},
    {"revision", PeftKey::kFree},
    {"peft_version", PeftKey::kFree},
    {"inference_mode", PeftKey::kFree},
    {"runtime_config", PeftKey::kFree},
    {"target_modules", PeftKey::kFree},
    {"exclude_modules", PeftKey::kFree},
    {"layers_to_transform", PeftKey::kFree},
    {"layers_pattern", PeftKey::kFree},
    {"megatron_core", PeftKey::kFree},
    {"qalora_group_size", PeftKey::kFree},
    // PEFT ignores these unless init_lora_weights names their method.
    {"loftq_config", PeftKey::kFree},
    {"eva_config", PeftKey::kFree},
    {"corda_config", PeftKey::kFree},
    {"lora_ga_config", PeftKey::kFree},
    {"modules_to_save", PeftKey::kOff},
    {"rank_pattern", PeftKey::kOff},
    {"alpha_pattern", PeftKey::kOff},
    {"layer_replication", PeftKey::kOff},
    {"trainable_token_indices", PeftKey::kOff},
    {"target_parameters", PeftKey::kOff},
    {"megatron_config", PeftKey::kOff},
    {"ensure_weight_tying", PeftKey::kOff},
    {"lora_bias", PeftKey::kOff},
    {"use_qalora", PeftKey::kOff},
    {"use_bdlora", PeftKey::kOff},
    {"alora_invocation_tokens", PeftKey::kOff},
    {"arrow_config", PeftKey::kOff},
    {"kasa_config", PeftKey::kOff},
    {"monteclora_config", PeftKey::kOff},
    {"velora_config", PeftKey::kOff},
};

/// Whether PEFT leaves the base's weights unchanged for this initialisation of the adapter. Other
/// initialisations (PiSSA, OLoRA, CorDA, LoftQ, LoRA-GA) subtract the adapter's first product from the base
/// whenever the folder is opened.
bool leaves_base_alone(const json& init) {
  return init.is_boolean() || init.is_null() || init == "gaussian" || init == "eva" || init == "orthogonal" ||
         init == "mica";
}

bool is_off(const json& value) {
  return value == false || value == "" || (!value.is_primitive() && value.empty()) || value.is_null();
}

/// Refuses keys with which the adapter would compute something else. Throws json::exception if a value has
/// another type.
AdapterDescription read_peft_config(const json& config, const std::string& where) {
  const auto refuse = [&](const std::string& key, const std::string& expected) {
    fail(ErrorKind::kCheckpoint, where, ": ", key, " must be ", expected, ", but is ",
         config.value(key, json()).dump(-1, ' ', true, json::error_handler_t::replace),
         "; train another adapter with PEFT, or merge it into its base",
         key == "init_lora_weights"
             ? " (save_pretrained() with path_initial_model_for_weight_conversion makes LoRA of it)"
             : "");
  };
  if (config.at("peft_type") != "LORA") refuse("peft_type", "\"LORA\"");
  if (config.value("bias", json("none")) != "none") refuse("bias", "\"none\"");
  if (!leaves_base_alone(config.value("init_lora_weights", json(true)))) {
    refuse(
        "init_lora_weights",
        "true, false, \"gaussian\", \"eva\", \"orthogonal\" or \"mica\", which leave the base's weights alone");
  }
  for (const auto& [key, value] : config.items()) {
    const auto known = std::find_if(std::begin(kPeftKeys), std::end(kPeftKeys),
                                    [&name = key](const auto& row) { return name == row.first; });
    if (known == std::end(kPeftKeys)) {
      if (!is_off(value)) refuse(key, "null, false or empty, because this version does not know it");
    } else if (known->second == PeftKey::kOff && !is_off(value)) {
      refuse(key, "null, false or empty");
    }
  }
  AdapterDescription adapter;
  adapter.lora = lora_of_json(config, where);
  adapter.transposed = config.value("fan_in_fan_out", false);
  return adapter;
}

bool is_checkpoint(const fs::path& path) {
  try {
    return util::is_there(path) && format_of(path) == WeightsFormat::kCheckpoint;
  } catch (const util::Error&) {  // its message is about weights of whole models
    return false;
  }
}

AdapterDescription described_by_peft(const fs::path& file) {
  const json config = read_config_json(file);
  try {
    return read_peft_config(config, file.string());
  } catch (const json::exception& error) {
    fail(ErrorKind::kCheckpoint, file.string(),
         " must have PEFT's keys peft_type, r, lora_alpha and so on, but does not: ", error.what(),
         "; save the adapter again");
  }
}

}  // namespace

StoredAdapter open_adapter(const fs::path& given) {
  const fs::path path = local_weights(given);
  StoredAdapter adapter;
  std::error_code error;
  if (fs::exists(path / kPeftConfig, error)) {
    adapter.where = (path / kPeftConfig).string();
    adapter.description = described_by_peft(path / kPeftConfig);
    adapter.weights.add(std::make_shared<SafetensorsReader>(path / kPeftWeights));
  } else {
    if (!is_checkpoint(path)) {
      fail(ErrorKind::kCheckpoint, "lora.init_from must be a folder of PEFT with ", kPeftConfig, " and ",
           kPeftWeights, ", or a checkpoint of adapters, but ", path.string(), " is neither; correct it");
    }
    const fs::path folder = checkpoint_folder(path);
    adapter.where = (folder / kManifestName).string();
    const auto described = described_adapter(read_manifest(folder).model, adapter.where);
    if (!described) {
      fail(ErrorKind::kCheckpoint, adapter.where,
           " must hold adapters for lora.init_from, but holds all weights of a model; use model.init_from");
    }
    adapter.description = *described;
    adapter.weights = stored_alone(folder);
  }
  for (const std::string& name : adapter.weights.names()) {
    const std::string parameter = parameter_of_peft(name);
    const auto part = nn::lora_name(parameter);
    if (!part) {
      fail(ErrorKind::kCheckpoint, adapter.where, ": the weights beside it must belong to adapters, but ",
           name, " does not; remove it");
    }
    adapter.names.emplace(parameter, name);
  }
  return adapter;
}

ConsolidateResult export_adapter(const PeftExport& request) {
  const auto shards = std::make_shared<ShardedSource>(request.checkpoint_folder);
  const std::string where = (request.checkpoint_folder / kManifestName).string();
  const auto adapter = described_adapter(shards->manifest().model, where);
  if (!adapter) {
    fail(ErrorKind::kUsage, "the checkpoint ", request.checkpoint_folder.string(),
         " must hold adapters, but holds all weights of a model; leave out `adapter`");
  }
  StagedFolder staged(request.output, request.overwrite);
  Weights weights = stored_alone(request.checkpoint_folder);
  weights.set_saturating(request.saturate);
  std::vector<TensorInfo> infos;
  std::map<std::string, std::string> stored;
  for (const std::string& name : weights.names()) {
    TensorInfo info = weights.info(name);
    info.name = peft_name(name);
    if (request.dtype) info.dtype = *request.dtype;
    stored.emplace(info.name, name);
    infos.push_back(std::move(info));
  }
  const ConsolidateResult result{.output = staged.target() / kPeftWeights,
                                 .config = staged.target() / kPeftConfig,
                                 .tensors = std::ssize(infos),
                                 .bytes = bytes_of(infos)};
  util::ByteCounter counter({}, "writing", result.bytes);
  {
    SafetensorsWriter writer(staged.path() / kPeftWeights, std::move(infos));
    for (const TensorInfo& info : writer.infos()) {
      writer.append(info, weights, stored.at(info.name), counter);
    }
    writer.finish();
  }
  util::write_file_atomically(staged.path() / kPeftConfig, peft_config(*adapter).dump(2) + "\n");
  staged.commit([](const std::string& name) { return name == kPeftWeights || name == kPeftConfig; });
  return result;
}

}  // namespace fsdp::checkpoint
