#include "state/hugging_face/hugging_face_config.h"

#include <type_traits>
#include <variant>

#include "base/dtype/dtype.h"
#include "base/util/enum_names.h"
#include "base/util/error.h"
#include "model/families/architectures.h"
#include "model/families/families.h"
#include "model/families/option_rules.h"
#include "model/families/rotary_scaling.h"

namespace fsdp::checkpoint {
using nlohmann::json;

namespace {

/// A list with an entry for each layer.
template <typename OfLayer>
json each_layer(const nn::ModelOptions& options, const OfLayer& of_layer) {
  json list = json::array();
  for (int64_t i = 0; i < options.num_hidden_layers; ++i) list.push_back(of_layer(i));
  return list;
}

/// The value of a key that holds one option.
json value_of(const nn::OptionRule& rule, const nn::ModelOptions& options) {
  using enum nn::OptionRange;
  const json value = std::visit(
      [&](auto member) -> json {
        if constexpr (std::is_same_v<decltype(member), nn::Activation nn::ModelOptions::*>) {
          return util::name_of(options.*member);
        } else if constexpr (std::is_same_v<decltype(member),
                                            util::Named<nn::RopeType> nn::ModelOptions::*>) {
          return (options.*member).name();
        } else {
          return options.*member;
        }
      },
      rule.field);
  const bool may_be_none = rule.range == kSizeOrNone || rule.range == kPositiveOrNone;
  return may_be_none && !(value > 0) ? json() : value;
}

/// Replaces zeros that stand for another value here, but not in transformers.
nn::ModelOptions without_implied_values(nn::ModelOptions options) {
  const nn::Family& family = nn::family_of(options);
  if (options.query_pre_attn_scalar == 0) options.query_pre_attn_scalar = nn::head_width(options);
  if (options.rope_local_base_freq == 0) options.rope_local_base_freq = options.rope_theta;
  if (options.sliding_window == 0 && family.has("sliding_window_pattern") && !family.rotates_in_windows) {
    options.sliding_window = options.max_position_embeddings;
  }
  return options;
}

void add_layers_and_scaling(json& config, const nn::ModelOptions& options) {
  const nn::Family& family = nn::family_of(options);
  if (family.has("sliding_window_pattern")) {
    config["layer_types"] = each_layer(options, [&](int64_t layer) {
      return nn::window_of_layer(options, layer) > 0 ? "sliding_attention" : "full_attention";
    });
  }
  if (family.has("no_rope_layer_interval")) {
    config["no_rope_layers"] =
        each_layer(options, [&](int64_t layer) { return nn::is_rotary_layer(options, layer) ? 1 : 0; });
    if (options.no_rope_layer_interval > 0) config["no_rope_layer_interval"] = options.no_rope_layer_interval;
  }
  if (nn::model_type_of(options)->nested_rotary) {
    const double local = options.rope_local_base_freq > 0 ? options.rope_local_base_freq : options.rope_theta;
    config["rope_parameters"] = {
        {"full_attention", {{"rope_type", "default"}, {"rope_theta", options.rope_theta}}},
        {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", local}}}};
  }
  if (!family.is_rotary() || options.rope_type == nn::RopeType::kDefault) return;
  json scaling = {{"rope_type", options.rope_type.name()}};
  const bool is_llama3 = options.rope_type == nn::RopeType::kLlama3;  // all of its keys are required
  for (const nn::RopeOption& each : nn::rope_options()) {
    const nn::OptionRule& rule = nn::option_rule(each.option);
    const bool is_required =
        is_llama3 || each.option == "rope_factor" || each.option == "rope_original_length";
    if (!each.is_of(options.rope_type.value())) continue;
    if (is_required || !rule.is_equal(options, nn::ModelOptions())) {
      scaling[std::string(each.key)] = value_of(rule, options);
    }
  }
  config["rope_scaling"] = scaling;
  if (config.contains("rope_parameters")) config["rope_parameters"]["full_attention"].update(scaling);
  constexpr const char* kOriginalLength = "original_max_position_embeddings";
  if (family.types.front().original_length > 0 && scaling.contains(kOriginalLength)) {
    config[kOriginalLength] = scaling[kOriginalLength];
  }
}

/// Keys of hugging_face_config() in which a run may differ from the model that it starts from: those that
/// weights do not determine, and the number of tokens, to which it may add.
constexpr const char* kFree[] = {"initializer_range", "attention_dropout",    "attn_pdrop",
                                 "embd_pdrop",        "resid_pdrop",          "hidden_dropout",
                                 "residual_dropout",  "router_aux_loss_coef", "vocab_size"};
constexpr const char* kIds[] = {"bos_token_id", "eos_token_id", "pad_token_id"};
constexpr const char* kDtypeKeys[] = {"dtype", "torch_dtype"};

json without_free_keys(json config) {
  for (const char* key : kFree) config.erase(key);
  return config;
}

/// The source in our spelling; nothing if the model is not supported.
std::optional<json> as_ours(const json& source) {
  try {
    return hugging_face_config(options_from_hugging_face(source, "config"));
  } catch (const util::Error&) {
    return std::nullopt;
  }
}

}  // namespace

json hugging_face_config(const nn::ModelOptions& options) {
  FSDP_CHECK(nn::is_built_in_architecture(options.architecture), options.architecture);
  const nn::ModelType* type = nn::model_type_of(options);
  FSDP_CHECK(type != nullptr, options.architecture);
  json config = {
      {"model_type", type->name}, {"architectures", {type->model_class}}, {"torch_dtype", "float32"}};
  const nn::ModelOptions values = without_implied_values(options);
  for (const nn::ConfigKey& key : nn::config_keys(*type)) {
    if (key.direction != nn::ConfigKey::Direction::kReadOnly && key.option != "head_dim") {
      config[key.key] = value_of(nn::option_rule(key.option), values);
    }
  }
  if (nn::family_of(options).is_rotary() && (options.head_dim > 0 || type->defaults.head_dim > 0)) {
    config["head_dim"] = nn::head_width(options);
  }
  add_layers_and_scaling(config, options);
  config.update(json_object(type->written));
  return config;
}

json inherited_config(const nn::ModelOptions& options, const json& source) {
  const json own = hugging_face_config(options);
  if (!source.is_object()) return own;
  json config = own;
  const std::optional<json> before = as_ours(source);
  if (before && without_free_keys(*before) == without_free_keys(own)) {
    config = source;
    for (const char* key : kFree) {
      if (own.contains(key)) config[key] = own[key];
    }
    // The source may be the model without its head (LlamaModel).
    config["architectures"] = {causal_model_class(config["model_type"])};
    config.erase("_name_or_path");  // the former path
    return config;
  }
  for (const char* key : kIds) {
    if (source.contains(key)) config[key] = source[key];
  }
  if (const auto dtype = dtype_of_config(source)) set_dtype(config, *dtype);
  return config;
}

std::string causal_model_class(const json& model_type) {
  const nn::ModelType* type =
      model_type.is_string() ? nn::find_model_type(model_type.get<std::string>()) : nullptr;
  FSDP_CHECK(type != nullptr, model_type.dump());
  return type->model_class;
}

json json_object(const std::string& text) { return text.empty() ? json::object() : json::parse(text); }

std::optional<c10::ScalarType> dtype_of_config(const json& config) {
  if (!config.is_object()) return std::nullopt;
  for (const char* key : kDtypeKeys) {
    const auto found = config.find(key);
    if (found == config.end() || !found->is_string()) continue;
    using c10::ScalarType;
    for (const auto dtype : {ScalarType::Float, ScalarType::BFloat16, ScalarType::Half, ScalarType::Double}) {
      if (*found == util::dtype_name(dtype)) return dtype;
    }
  }
  return std::nullopt;
}

void set_dtype(json& config, c10::ScalarType dtype) {
  const bool has_new_key = config.contains("dtype");
  if (has_new_key) config["dtype"] = util::dtype_name(dtype);
  if (!has_new_key || config.contains("torch_dtype")) config["torch_dtype"] = util::dtype_name(dtype);
}

}  // namespace fsdp::checkpoint
