// options_from_hugging_face(): config.json as options, and everything that is refused in it.

#include <algorithm>
#include <functional>
#include <limits>
#include <set>
#include <vector>

#include "base/util/enum_names.h"
#include "base/util/error.h"
#include "base/util/text.h"
#include "model/families/families.h"
#include "model/families/option_rules.h"
#include "model/families/rotary_scaling.h"
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

/// `name`: key of the type, "rope_type" or "type".
nn::RopeType rope_type_in(const ConfigReader& reader, const char* name, const nn::ModelOptions& options) {
  using enum nn::RopeType;
  const json found = reader.value(name);
  const nn::Family& family = nn::family_of(options);
  // Phi-3's older names of its only scaling.
  const bool is_alias = (found == "su" || found == "yarn") && !nn::has_rope_type(options, kYarn);
  if (is_alias && nn::has_rope_type(options, kLongrope)) return kLongrope;
  const nn::RopeType type = reader.choice(name, kDefault);
  if (type != kDefault && !nn::has_rope_type(options, type)) {
    std::vector<std::string> supported;
    for (const nn::RopeType each : {kDefault, kLinear, kLlama3, kYarn, kLongrope, kDynamic}) {
      if (each == kDefault || nn::has_rope_type(options, each)) supported.push_back(util::name_of(each));
    }
    reader.refuse(name, concat("one of ", util::join(supported, ", "), ", the ones that models of ",
                               family.architecture, " have"));
  }
  return type;
}

/// A list of longrope; find_rope_problem() checks its length.
std::vector<double> read_factors(const ConfigReader& reader, const std::string& key) {
  const json list = reader.value(key);
  const bool is_list = list.is_array() && std::ssize(list) <= nn::kMostWidth &&
                       std::ranges::all_of(list, [](const json& entry) { return entry.is_number(); });
  if (!is_list) reader.refuse(key, "a list of numbers");
  return list.get<std::vector<double>>();
}

/// Reads an option of the rotary scaling, if its type has it. Keys that are missing or null leave the
/// default, as 0 does in numbers where transformers reads it so.
void read_rope_option(const ConfigReader& config, const ConfigReader& reader, const nn::RopeOption& each,
                      nn::ModelOptions& options) {
  using enum nn::RopeType;
  const nn::RopeType type = options.rope_type.value();
  if (!each.is_of(type)) return;
  const std::string key(each.key);
  const auto& field = nn::option_rule(each.option).field;
  if (each.option == "rope_original_length") {
    const int64_t outside = nn::family_of(options).types.front().original_length;
    reader.has(key);  // the key outside counts
    options.rope_original_length =
        outside > 0
            ? config.size(key, nn::kMostPositions, outside)
            : reader.size(key, nn::kMostPositions, type == kLlama3 ? 0 : options.max_position_embeddings);
  } else if (each.option == "rope_factor") {
    const bool has_default = (type == kYarn || type == kLongrope) && !reader.has(key);
    options.rope_factor = has_default ? 0 : reader.positive(key, 0);  // 0: the ratio of the lengths
  } else if (const auto* list = std::get_if<std::vector<double> nn::ModelOptions::*>(&field)) {
    options.** list = read_factors(reader, key);
  } else if (const auto* flag = std::get_if<bool nn::ModelOptions::*>(&field)) {
    options.** flag = reader.flag(key, options.**flag);
  } else {
    double& value = options.*std::get<double nn::ModelOptions::*>(field);
    if (type == kLlama3)
      value = reader.positive(key, 0);
    else if (const double found = reader.not_negative(key, 0); found > 0)
      value = reader.positive(key, value);
  }
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
  if (const nn::RopeType type = rope_type_in(reader, name, options); type != nn::RopeType::kDefault) {
    options.rope_type = type;
    for (const nn::RopeOption& each : nn::rope_options()) read_rope_option(all, reader, each, options);
    if (options.rope_factor == 0) {
      options.rope_factor = static_cast<double>(options.max_position_embeddings) /
                            static_cast<double>(options.rope_original_length);
    }
    if (const auto problem = nn::find_rope_problem(options)) {
      const auto option = std::ranges::find(nn::rope_options(), problem->option, &nn::RopeOption::option);
      const std::string_view named = option == nn::rope_options().end() ? problem->option : option->key;
      fail(ErrorKind::kCheckpoint, where, ": \"", named, "\" ", problem->must);
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
  const bool has_list = reader.has("layer_types");
  for (const char* key : {"_sliding_window_pattern", "sliding_window_pattern"}) {
    const bool is_given = reader.has(key);  // without effect beside the list
    if (is_given && !has_list) pattern = reader.size(key, nn::kMostLayers, pattern);
  }
  if (has_list) {
    pattern = read_interval(reader, "layer_types", options, {"full_attention"}, {"sliding_attention"});
  }
  if (pattern == 1 && options.sliding_window > 0 && nn::family_of(options).rotates_in_windows) {
    reader.refuse("sliding_window", "null where no layer has a window, since no layer would have positions");
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

void read_all_scaling(const ConfigReader& reader, const nn::ModelType& type, nn::ModelOptions& options) {
  constexpr const char* kLocal = "rope_local_base_freq";
  const bool is_for_each_kind =
      nn::family_of(options).has(kLocal) && std::ranges::count(type.without_key, kLocal) == 0;
  const json scaling = reader.value("rope_scaling"), parameters = reader.value("rope_parameters");
  read_rotary(reader, "rope_scaling", scaling, options);
  if (!is_for_each_kind) {
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
  local.rope_theta = options.rope_local_base_freq > 0 ? options.rope_local_base_freq : options.rope_theta;
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
    read_all_scaling(reader, type, options);
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
