// options_from_hugging_face(): config.json as options, and everything that is refused in it.

#include <algorithm>
#include <functional>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "base/util/enum_names.h"
#include "base/util/error.h"
#include "base/util/text.h"
#include "model/families/families.h"
#include "model/families/option_rules.h"
#include "state/hugging_face/hugging_face_config.h"
#include "state/hugging_face/hugging_face_unsupported.h"

namespace fsdp::checkpoint {
using nlohmann::json;

namespace {

/// Reads the keys of a config, refuses impossible values, and tells the keys that nothing has read.
class ConfigReader {
 public:
  ConfigReader(const json& config, const std::string& where) : config_(config), where_(where) {
    if (!config_.is_object()) fail(ErrorKind::kCheckpoint, where_, " is not a JSON object");
  }

  /// A whole number from 1 to `most`, the limit of the same key in [model], so that no number can ask for
  /// more names or elements than can exist. Without a default the key is required. null counts as missing.
  int64_t size(const std::string& key, int64_t most, int64_t otherwise = 0) const {
    if (!has(key) && otherwise > 0) return otherwise;
    if (!has(key)) fail(ErrorKind::kCheckpoint, where_, " lacks the key \"", key, "\"");
    const json& value = config_[key];
    if (!value.is_number_integer() || value < 1 || value > most) {
      refuse(key, concat("a whole number from 1 to ", most));
    }
    return value.get<int64_t>();
  }

  double number(const std::string& key, double otherwise) const {
    if (!has(key)) return otherwise;
    if (!config_[key].is_number()) refuse(key, "a number");
    return config_[key].get<double>();
  }

  /// Above 0 also in single precision, in which the model computes.
  double positive(const std::string& key, double otherwise) const {
    const double value = number(key, otherwise);
    if (!(value >= std::numeric_limits<float>::min() && value <= std::numeric_limits<float>::max())) {
      refuse(key, "a number above 0 that fits in single precision");
    }
    return value;
  }

  double not_negative(const std::string& key, double otherwise) const {
    const double value = number(key, otherwise);
    if (!(value >= 0)) refuse(key, "a number of at least 0");
    return value;
  }

  /// A number from 0 to below 1.
  double share(const std::string& key, double otherwise) const {
    const double value = number(key, otherwise);
    if (!(value >= 0 && value < 1)) refuse(key, "a number from 0 to below 1");
    return value;
  }

  bool flag(const std::string& key, bool otherwise) const {
    if (!has(key)) return otherwise;
    if (!config_[key].is_boolean()) refuse(key, "true or false");
    return config_[key].get<bool>();
  }

  /// Throws unless the key is missing or has the only supported value.
  void require(const std::string& key, const json& expected) const {
    if (has(key) && config_[key] != expected)
      refuse(key, concat(expected.dump(), ", the only one supported"));
  }

  template <util::NamedEnum E>
  E choice(const std::string& key, E otherwise) const {
    if (!has(key)) return otherwise;
    const auto known =
        config_[key].is_string() ? util::parse_enum<E>(config_[key].get<std::string>()) : std::nullopt;
    if (!known) refuse(key, concat("one of ", util::join(util::names_of_enum<E>(), ", ")));
    return *known;
  }

  bool has(const std::string& key) const {
    read_.insert(key);
    return config_.contains(key) && !config_[key].is_null();
  }
  /// null differs from a missing key where the default is not null.
  bool is_null(const std::string& key) const {
    read_.insert(key);
    return config_.contains(key) && config_[key].is_null();
  }
  /// "KEY": VALUE of each key that has not been read and is neither null, false, 0 nor empty.
  std::vector<std::string> unread() const {
    std::vector<std::string> unread;
    for (const auto& [key, value] : config_.items()) {
      const bool is_off = value.is_null() || value == false || value == 0 || value == "" ||
                          (value.is_structured() && value.empty());
      if (!is_off && !read_.contains(key)) unread.push_back(shown_entry(key, value));
    }
    return unread;
  }
  json value(const std::string& key) const { return has(key) ? config_[key] : json(); }
  const std::string& where() const { return where_; }

  [[noreturn]] void refuse(const std::string& key, const std::string& expected) const {
    fail(ErrorKind::kCheckpoint, where_, ": \"", key, "\" must be ", expected, ", but is ",
         value(key).dump(-1, ' ', true, json::error_handler_t::replace));
  }

 private:
  const json& config_;
  const std::string& where_;
  mutable std::set<std::string, std::less<>> read_;
};

/// Limit of experts in all layers together.
constexpr int64_t kMostExpertsOfAll = 200'000;

/// Refuses keys of an object of rotary positions that nothing has read: each of them changes the positions.
void refuse_unread_rotary(const ConfigReader& reader) {
  // They describe how the model was made.
  for (const char* key : {"original_max_position_embeddings", "finetuned"}) reader.has(key);
  const std::vector<std::string> unread = reader.unread();
  if (unread.empty()) return;
  fail(ErrorKind::kCheckpoint, reader.where(),
       " must have keys that this version knows with its type, but has ", util::join(unread, ", "),
       "; use a program that supports ", unread.size() > 1 ? "these" : "it");
}

/// Scaling of the rotary positions. `found`: its object, or null.
void read_rotary(const ConfigReader& all, const char* key, const json& found, nn::ModelOptions& options) {
  if (found.is_null()) return;
  if (!found.is_object()) all.refuse(key, "null or an object");
  const std::string where = concat("\"", key, "\" of ", all.where());
  const ConfigReader reader(found, where);
  const nn::Family& family = nn::family_of(options);
  options.rope_theta = reader.positive("rope_theta", options.rope_theta);
  if (family.has("partial_rotary_factor")) {
    options.partial_rotary_factor = reader.positive("partial_rotary_factor", options.partial_rotary_factor);
  } else {
    reader.require("partial_rotary_factor", 1);
  }
  // "type" is what older releases wrote, and "rope_type" counts where both are there.
  const char* name = reader.has("type") && !reader.has("rope_type") ? "type" : "rope_type";
  const json type = reader.has(name) ? found[name] : json("default");
  if (type != "default") {
    if (!family.has("rope_type")) {
      reader.refuse(name, "\"default\", the only one supported for this model");
    }
    if (type != "linear" && type != "llama3") {
      reader.refuse(name, "\"default\", \"linear\" or \"llama3\", the only ones supported");
    }
    options.rope_type = type.get<std::string>();
    options.rope_factor = reader.positive("factor", 0);
  }
  if (type == "llama3") {
    options.rope_low_freq_factor = reader.positive("low_freq_factor", 0);
    options.rope_high_freq_factor = reader.positive("high_freq_factor", 0);
    options.rope_original_length = reader.size("original_max_position_embeddings", nn::kMostPositions);
    if (!(options.rope_low_freq_factor < options.rope_high_freq_factor)) {
      reader.refuse("low_freq_factor", "less than \"high_freq_factor\"");
    }
  }
  refuse_unread_rotary(reader);
}

/// n, where every nth layer, and no other, has `value` in a list of all layers; 0: none has it.
int64_t read_interval(const ConfigReader& reader, const char* key, const nn::ModelOptions& options,
                      const std::vector<json>& values, const std::vector<json>& others) {
  const json list = reader.value(key);
  const auto is_one_of = [](const json& entry, const std::vector<json>& wanted) {
    return std::find(wanted.begin(), wanted.end(), entry) != wanted.end();
  };
  if (!list.is_array() || std::ssize(list) != options.num_hidden_layers) {
    reader.refuse(key, concat("a list with an entry for each of ", options.num_hidden_layers, " layers"));
  }
  int64_t interval = 0;
  for (int64_t i = 0; i < std::ssize(list); ++i) {
    const json& entry = list[static_cast<size_t>(i)];
    if (!is_one_of(entry, values) && !is_one_of(entry, others)) {
      reader.refuse(key, concat("a list of ", values.front().dump(), " and ", others.front().dump()));
    }
    if (interval == 0 && is_one_of(entry, values)) interval = i + 1;
    const bool is_expected = interval > 0 && (i + 1) % interval == 0;
    if (is_one_of(entry, values) != is_expected) {
      reader.refuse(key, concat("a list with ", values.front().dump(), " in every nth place alone"));
    }
  }
  return interval;
}

/// Sets the option from the key. A key without a value leaves the default, which the options have before.
void read_key(const ConfigReader& reader, const nn::ConfigKey& key, nn::ModelOptions& options) {
  using enum nn::OptionRange;
  const nn::OptionRule& rule = nn::option_rule(key.option);
  const bool is_none = (rule.range == kSizeOrNone || rule.range == kPositiveOrNone) && !reader.has(key.key);
  const auto read = [&](auto& value) {
    using Value = std::remove_reference_t<decltype(value)>;
    if constexpr (std::is_same_v<Value, bool>) {
      value = reader.flag(key.key, value);
    } else if constexpr (std::is_same_v<Value, nn::Activation>) {
      value = reader.choice(key.key, value);
    } else if constexpr (std::is_arithmetic_v<Value>) {
      if (is_none && reader.is_null(key.key)) value = 0;
      if (is_none) return;
      if constexpr (std::is_integral_v<Value>) {
        value = reader.size(key.key, rule.most, value);
      } else {
        value = rule.range == kShare         ? reader.share(key.key, value)
                : rule.range == kNotNegative ? reader.not_negative(key.key, value)
                                             : reader.positive(key.key, value);
      }
    }
  };
  std::visit([&](auto member) { read(options.*member); }, rule.field);
}

void read_head_width(const ConfigReader& reader, nn::ModelOptions& options) {
  if (nn::family_of(options).has("head_dim") && (reader.has("head_dim") || options.head_dim > 0)) {
    options.head_dim = reader.size("head_dim", nn::kMostWidth, options.head_dim);
    if (options.head_dim * options.num_attention_heads == options.hidden_size) options.head_dim = 0;
  } else if (options.hidden_size % options.num_attention_heads != 0) {
    reader.refuse("num_attention_heads", "a divisor of \"hidden_size\"");
  } else {
    reader.require("head_dim", options.hidden_size / options.num_attention_heads);
  }
}

void read_window_pattern(const ConfigReader& reader, nn::ModelOptions& options) {
  int64_t& pattern = options.sliding_window_pattern;
  for (const char* key : {"_sliding_window_pattern", "sliding_window_pattern"}) {
    pattern = reader.size(key, nn::kMostLayers, pattern);
  }
  if (reader.has("layer_types")) {
    pattern = read_interval(reader, "layer_types", options, {"full_attention"}, {"sliding_attention"});
  }
  // An interval of layers without a window has no meaning where no layer has one.
  if (options.sliding_window == 0 || pattern == 1) options.sliding_window = pattern = 0;
}

void check_experts(const ConfigReader& reader, const nn::ModelOptions& options) {
  const char* used = reader.has("num_local_experts") ? "num_local_experts" : "num_experts";
  if (options.num_experts * options.num_hidden_layers > kMostExpertsOfAll) {
    reader.refuse(used,
                  concat("at most ", kMostExpertsOfAll, " in all ", options.num_hidden_layers, " layers"));
  }
  if (options.num_experts_per_tok > options.num_experts) {
    reader.refuse("num_experts_per_tok", concat("at most \"", used, "\", ", options.num_experts));
  }
}

void read_all_scaling(const ConfigReader& reader, nn::ModelOptions& options) {
  const json scaling = reader.value("rope_scaling"), parameters = reader.value("rope_parameters");
  read_rotary(reader, "rope_scaling", scaling, options);
  if (!nn::family_of(options).has("rope_local_base_freq")) {
    if (scaling.is_object() && !scaling.empty() && parameters.is_object() && scaling != parameters) {
      reader.refuse("rope_parameters", "the same as \"rope_scaling\"");
    }
    return read_rotary(reader, "rope_parameters", parameters, options);
  }
  if (!parameters.is_object()) return;
  const std::string where = concat("\"rope_parameters\" of ", reader.where());
  const ConfigReader of_layers(parameters, where);
  read_rotary(reader, "rope_parameters", of_layers.value("full_attention"), options);
  nn::ModelOptions local = options;
  local.rope_theta = options.rope_local_base_freq;
  local.rope_type = nn::RopeType::kDefault;
  read_rotary(reader, "rope_parameters", of_layers.value("sliding_attention"), local);
  refuse_unread_rotary(of_layers);
  if (local.rope_type != nn::RopeType::kDefault) {
    reader.refuse("rope_parameters", "without scaling for \"sliding_attention\"");
  }
  options.rope_local_base_freq = local.rope_theta;
}

nn::ModelOptions read_options(const ConfigReader& reader, const nn::ModelType& type) {
  nn::ModelOptions options = type.defaults;
  const nn::Family& family = nn::family_of(options);
  for (const nn::ConfigKey& key : nn::config_keys(type)) {
    if (key.direction == nn::ConfigKey::Direction::kWriteOnly || key.option == "head_dim") continue;
    if (key.option == "intermediate_size" && options.intermediate_size == 0) {
      options.intermediate_size = 4 * options.hidden_size;
    }
    if (key.option == "num_key_value_heads" && options.num_key_value_heads == 0) {
      options.num_key_value_heads = options.num_attention_heads;
    }
    read_key(reader, key, options);
  }
  if (!family.has("num_key_value_heads")) options.num_key_value_heads = options.num_attention_heads;
  if (family.is_rotary()) {
    read_head_width(reader, options);
    read_all_scaling(reader, options);
  }
  if (options.query_pre_attn_scalar == nn::head_width(options)) options.query_pre_attn_scalar = 0;
  if (family.has("no_rope_layer_interval")) {
    options.no_rope_layer_interval =
        reader.has("no_rope_layers")
            ? read_interval(reader, "no_rope_layers", options, {0, false}, {1, true})
            : reader.size("no_rope_layer_interval", nn::kMostLayers, options.no_rope_layer_interval);
  }
  if (family.has("sliding_window_pattern")) read_window_pattern(reader, options);
  if (family.has_experts()) check_experts(reader, options);
  const json required = json_object(type.required);
  for (const auto& [key, value] : required.items()) reader.require(key, value);
  return options;
}

}  // namespace

nn::ModelOptions options_from_hugging_face(const json& config, const std::string& where) {
  ConfigReader reader(config, where);
  if (reader.has("quantization_config")) {
    fail(ErrorKind::kCheckpoint, where,
         " describes quantized weights, but only floating-point weights are supported");
  }
  const json name = reader.value("model_type");
  const nn::ModelType* type = name.is_string() ? nn::find_model_type(name.get<std::string>()) : nullptr;
  if (type == nullptr) {
    std::vector<std::string> known;
    for (const nn::Family& family : nn::families()) {
      for (const nn::ModelType& each : family.types) known.push_back(concat("\"", each.name, "\""));
    }
    const std::string why = name.is_string() ? unsupported_type(name.get<std::string>()) : "";
    fail(ErrorKind::kCheckpoint, where, ": \"model_type\" must be one of ", util::join(known, ", "),
         ", but is ", name.dump(-1, ' ', true, json::error_handler_t::replace),
         why.empty() ? "" : ", whose models differ: ", why,
         why.empty() ? "" : ", which this version cannot compute");
  }
  nn::ModelOptions options = read_options(reader, *type);
  refuse_unsupported_traits(config, nn::family_of(options), where);
  for (const std::string& key : keys_without_effect(config)) reader.has(key);
  if (const std::vector<std::string> unread = reader.unread(); !unread.empty()) {
    report_unknown_keys(unread, reader.has("auto_map"), where);
  }
  return options;
}

}  // namespace fsdp::checkpoint
