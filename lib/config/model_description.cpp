#include "config/model_description.h"

#include <algorithm>

#include "checkpoint/hugging_face_config.h"
#include "config/keys.h"
#include "config/load.h"
#include "nn/architectures.h"
#include "util/error.h"
#include "util/text.h"

namespace fsdp::config {

nlohmann::json model_description(const Config& config) {
  if (nn::is_built_in_architecture(config.model.architecture)) {
    return checkpoint::hugging_face_config(config.model);
  }
  const nn::Architecture* architecture = nn::architectures().find(config.model.architecture);
  FSDP_CHECK(architecture != nullptr, config.model.architecture);
  const auto& own = architecture->keys;
  Config copy = config;
  std::string text, section;
  for (const Key& key : all_keys()) {
    const bool of_model = key.section == "model" && key.name != "preset" && !key.name.starts_with("init_");
    if (!of_model && std::find(own.begin(), own.end(), key.full_name()) == own.end()) continue;
    if (key.section != section) text += "[" + key.section + "]\n";
    section = key.section;
    text += key.name + " = " + toml_text(value_of(key, copy)) + "\n";
  }
  return {{"model_type", config.model.architecture},
          {"vocab_size", config.model.vocab_size},
          {"torch_dtype", "float32"},
          {checkpoint::kPluginConfig, text},
          {checkpoint::kPluginNames, config.run.plugins}};
}

nn::ModelOptions model_of(const checkpoint::DescribedModel& model) {
  if (model.plugin_config.empty()) return model.options;
  const std::string& name = model.options.architecture;
  if (nn::architectures().find(name) == nullptr) {
    util::fail(util::ErrorKind::kCheckpoint, model.where, ": expected a model that is known (",
               util::join(nn::architectures().names(), ", "), "); found ", name, " of the plug-in ",
               util::join(model.plugins, ", "), "; load it with run.plugins or --plugin");
  }
  // What a configuration needs beside its model.
  const std::string rest = "[data]\ntrain = [\"none\"]\nsequence_length = 1\n";
  return parse_config(model.plugin_config + rest, model.where + ": " + checkpoint::kPluginConfig).model;
}

}  // namespace fsdp::config
