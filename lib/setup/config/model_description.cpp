#include "setup/config/model_description.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <variant>

#include "base/util/error.h"
#include "base/util/text.h"
#include "model/families/architectures.h"
#include "model/families/families.h"
#include "model/families/option_rules.h"
#include "model/families/rotary_scaling.h"
#include "setup/config/keys.h"
#include "setup/config/load.h"
#include "state/hugging_face/hugging_face_config.h"

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
    fail(ErrorKind::kCheckpoint, model.where, ": the architecture must be one of ",
         util::join(nn::architectures().names(), ", "), ", but is ", name, " of the plug-in ",
         util::join(model.plugins, ", "), "; load it with run.plugins or --plugin");
  }
  // The keys without defaults.
  const std::string rest = "[data]\ntrain = [\"none\"]\nsequence_length = 1\n";
  return parse_config(model.plugin_config + rest, model.where + ": " + checkpoint::kPluginConfig).model;
}

namespace {

const std::set<std::string_view> kOfAll = {"model.architecture",        "model.vocab_size",
                                           "model.hidden_size",         "model.intermediate_size",
                                           "model.num_hidden_layers",   "model.num_attention_heads",
                                           "model.tie_word_embeddings", "model.max_position_embeddings"};

bool is_of(const std::string& architecture, const std::string& key) {
  const nn::Architecture* found = nn::architectures().find(architecture);
  return found != nullptr && std::find(found->keys.begin(), found->keys.end(), key) != found->keys.end();
}

/// The model with one canonical form of equivalent settings.
nn::ModelOptions normalized(nn::ModelOptions options) {
  const nn::ModelOptions defaults;
  if (options.num_attention_heads > 0 &&
      options.head_dim * options.num_attention_heads == options.hidden_size) {
    options.head_dim = 0;
  }
  if (options.sliding_window == 0) options.sliding_window_pattern = 0;
  if (options.num_attention_heads > 0 && options.query_pre_attn_scalar == nn::head_width(options)) {
    options.query_pre_attn_scalar = 0;
  }
  for (const nn::RopeOption& each : nn::rope_options()) {
    if (each.is_of(options.rope_type.value())) continue;
    std::visit([&](auto member) { options.*member = defaults.*member; }, nn::option_rule(each.option).field);
  }
  return options;
}

}  // namespace

bool is_determined_by_weights(const std::string& key) {
  const std::vector<std::string> names = nn::architectures().names();
  return kOfAll.contains(key) ||
         std::any_of(names.begin(), names.end(), [&](const std::string& name) { return is_of(name, key); });
}

std::vector<ModelDifference> compare_models(const nn::ModelOptions& given, const nn::ModelOptions& stored) {
  Config mine, theirs;
  mine.model = normalized(given);
  theirs.model = normalized(stored);
  mine.plugin_values = given.plugin_values;
  theirs.plugin_values = stored.plugin_values;
  const bool same_architecture = given.architecture == stored.architecture;
  std::vector<ModelDifference> differences;
  for (const Key& key : all_keys()) {
    const std::string name = key.full_name();
    if (!kOfAll.contains(name) && !(same_architecture && is_of(given.architecture, name))) continue;
    const Value my_value = value_of(key, mine), their_value = value_of(key, theirs);
    if (my_value == their_value) continue;
    const bool adds_tokens = name == "model.vocab_size" && given.vocab_size > stored.vocab_size;
    if (adds_tokens && nn::is_built_in_architecture(given.architecture)) continue;
    differences.push_back({name, toml_text(my_value), toml_text(their_value)});
  }
  return differences;
}

std::string difference_text(const ModelDifference& difference, const std::string& where) {
  return concat(difference.key, " must be ", difference.stored, ", as in ", where,
                ", which describes the weights in model.init_from, but is ", difference.given);
}

void require_same_model(const nn::ModelOptions& given, const std::filesystem::path& weights) {
  const auto stored = checkpoint::described_model(weights);
  if (!stored) return;
  std::vector<std::string> texts;
  for (const ModelDifference& difference : compare_models(given, model_of(*stored))) {
    texts.push_back(difference_text(difference, stored->where));
  }
  if (texts.empty()) return;
  fail(ErrorKind::kCheckpoint, util::join(texts, "; "), "; ", kDifferenceRemedy);
}

}  // namespace fsdp::config
