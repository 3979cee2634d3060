// described_config(): a file's metadata as config.json, and what is refused in them.

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>
#include <string>
#include <utility>

#include "base/util/error.h"
#include "model/families/option_rules.h"
#include "model/families/rotary_scaling.h"
#include "state/gguf/forms.h"
#include "state/gguf/rotary_scaling.h"
#include "state/hugging_face/hugging_face_config.h"

namespace fsdp::gguf {
using nlohmann::json;

namespace {

constexpr const char* kRemedy = "; if it is right, give the model's config.json with `config`";

/// The shortest decimal number that rounds to this float: 1e-5, not 9.99999974e-06.
double decimal(float value) {
  char text[32];
  const auto [end, error] = std::to_chars(text, text + sizeof(text), value);
  FSDP_CHECK(error == std::errc());
  double number = 0;
  std::from_chars(text, end, number);
  return number;
}

json json_of(const Value& value) {
  if (const auto* number = std::get_if<uint32_t>(&value)) return *number;
  if (const auto* number = std::get_if<float>(&value)) return decimal(*number);
  if (const auto* flag = std::get_if<bool>(&value)) return *flag;
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  return nullptr;
}

std::string text_of(const json& value) { return value.dump(-1, ' ', true, json::error_handler_t::replace); }

/// Reads the keys of the architecture, and tells those that nothing has read.
class ArchitectureKeys {
 public:
  ArchitectureKeys(const Reader& file, const GgufForm& form)
      : file_(file), prefix_(concat(form.architecture, ".")) {}

  json value(const std::string& key) {
    read_.insert(prefix_ + key);
    const auto found = file_.metadata().find(prefix_ + key);
    if (found == file_.metadata().end()) return nullptr;
    json value = json_of(found->second);
    if (value.is_null()) refuse(key, "must be one value of at most 32 bits, but is not");
    return value;
  }

  /// The key's list of numbers; null if it has none.
  const std::vector<int32_t>* list(const std::string& key) {
    read_.insert(prefix_ + key);
    return file_.find<std::vector<int32_t>>(prefix_ + key);
  }

  [[noreturn]] void refuse(const std::string& key, const std::string& what) const {
    fail(ErrorKind::kCheckpoint, file_.path().string(), ": \"", prefix_, key, "\" ", what, kRemedy);
  }

  void refuse_unread() const {
    for (const auto& [key, value] : file_.metadata()) {
      if (!key.starts_with(prefix_) || read_.contains(key)) continue;
      const json found = json_of(value);
      if (found == 0 || found == false) continue;
      fail(ErrorKind::kCheckpoint, file_.path().string(), ": \"", key, "\": ", text_of(found),
           " describes something that this version cannot compute", kRemedy);
    }
  }

 private:
  const Reader& file_;
  std::string prefix_;
  std::set<std::string> read_;
};

/// The tensor's divisors; none if it is missing or cannot be such a tensor.
std::vector<float> divisors_in(const Reader& file, const char* name) {
  constexpr int64_t kMost = 1 << 16;
  const auto found = file.tensors().find(name);
  if (found == file.tensors().end()) return {};
  const Tensor& tensor = found->second;
  if (tensor.type != TensorType::kF32 || tensor.shape.size() != 1 || tensor.shape[0] > kMost) return {};
  std::vector<float> divisors(static_cast<size_t>(tensor.shape[0]));
  file.read(tensor, 0, bytes_of(tensor), divisors.data());
  return divisors;
}

/// The scaling that the metadata alone describe; null if there is none.
json described_scaling(ArchitectureKeys& keys, const json& config) {
  const json type = keys.value("rope.scaling.type"), attention = keys.value("rope.scaling.attn_factor"),
             length = keys.value("rope.scaling.original_context_length"),
             fast = keys.value("rope.scaling.yarn_beta_fast"),
             slow = keys.value("rope.scaling.yarn_beta_slow"),
             whole = keys.value("rope.scaling.yarn_attn_factor");  // with llama.cpp's own
  json factor = keys.value("rope.scaling.factor");
  if (factor.is_null()) factor = keys.value("rope.scale_linear");
  keys.value("rope.scaling.finetuned");
  if (!type.is_null() && type != "none" && type != "linear" && type != "yarn" && type != "longrope") {
    keys.refuse("rope.scaling.type",
                concat("must be \"none\", \"linear\", \"yarn\" or \"longrope\", but is ", text_of(type)));
  }
  const bool is_scaled = factor.is_number() && factor != 0 && factor != 1 && type != "none";
  if (type != "yarn" && type != "longrope") {
    if (attention.is_number() && attention != 1) {
      keys.refuse("rope.scaling.attn_factor", concat("must be 1 without YaRN, but is ", text_of(attention)));
    }
    return is_scaled ? json{{"rope_type", "linear"}, {"factor", factor}} : json();
  }
  if (type == "yarn" && !(factor.is_number() && factor > 0)) return nullptr;
  json scaling = {{"rope_type", type}, {"factor", factor}};
  scaling["original_max_position_embeddings"] =
      length.is_number() ? length : config.value("max_position_embeddings", json());
  if (fast.is_number()) scaling["beta_fast"] = fast;
  if (slow.is_number()) scaling["beta_slow"] = slow;
  if (attention.is_number() && attention != 1 && type == "yarn") {
    scaling["attention_factor"] =
        attention.get<double>() * own_attention_factor(nn::RopeType::kYarn, factor.get<double>());
  } else if (whole.is_number() && type == "yarn") {
    scaling["attention_factor"] = whole;
  }
  return scaling;
}

/// The scaling of Phi-3: two tensors, which llama.cpp recognises by their names alone.
json described_longrope(const Reader& file, ArchitectureKeys& keys, json& config) {
  const json attention = keys.value("rope.scaling.attn_factor"),
             length = keys.value("rope.scaling.original_context_length");
  json scaling = {{"rope_type", "longrope"},
                  {"short_factor", divisors_in(file, kShortFactors)},
                  {"long_factor", divisors_in(file, kLongFactors)}};
  for (const char* key : {"short_factor", "long_factor"}) {
    for (json& each : scaling[key]) each = decimal(each.get<float>());
  }
  config["original_max_position_embeddings"] =
      length.is_number() ? length : config.value("max_position_embeddings", json());
  // The file has the factor of cosines and sines, config.json the ratio of lengths that it follows from.
  nn::ModelOptions options;
  options.rope_type = nn::RopeType::kLongrope;
  options.rope_original_length = config["original_max_position_embeddings"].get<int64_t>();
  options.rope_factor = config.value("max_position_embeddings", 0.0) /
                        static_cast<double>(std::max<int64_t>(options.rope_original_length, 1));
  const double found = attention.is_number() ? attention.get<double>() : 1;
  if (!(std::fabs(nn::rope_attention_factor(options) - found) <= 1e-6 * found)) {
    scaling["attention_factor"] = found;
  }
  return scaling;
}

/// Scaling of the rotary positions, by the metadata or by tensors.
void read_scaling(const Reader& file, const GgufForm& form, ArchitectureKeys& keys, json& config) {
  if (form.has_longrope && file.tensors().contains(kLongFactors)) {
    keys.value("rope.scaling.type");
    keys.value("rope.scaling.factor");
    keys.value("rope.scaling.finetuned");
    config["rope_scaling"] = described_longrope(file, keys, config);
    return;
  }
  if (const json scaling = described_scaling(keys, config); !scaling.is_null()) {
    config["rope_scaling"] = scaling;
  }
  if (!file.tensors().contains(kRopeFrequencies)) return;
  const std::vector<float> divisors = divisors_in(file, kRopeFrequencies);
  if (std::all_of(divisors.begin(), divisors.end(), [](float value) { return value == 1; }) &&
      !divisors.empty()) {
    return;
  }
  json scaling;
  const double theta = config.contains("rope_theta") ? config["rope_theta"].get<double>() : 10000;
  if (!form.scales_frequencies || config.contains("rope_scaling") ||
      !find_scaling(divisors, theta, scaling)) {
    fail(ErrorKind::kCheckpoint, file.path().string(), ": ", kRopeFrequencies,
         " must be the rotary scaling of Llama 3, but is another", kRemedy);
  }
  config["rope_scaling"] = scaling;
}

/// The share of a head that rotates, by which nn::rotary_width() gives `width` again.
double rotary_share(int64_t width, const json& config, const ArchitectureKeys& keys) {
  const int64_t heads = config.value("num_attention_heads", int64_t{0});
  const int64_t filling = heads > 0 ? config.value("hidden_size", int64_t{0}) / heads : 0;
  const int64_t head_width = config.value("head_dim", filling);
  if (width > head_width) {
    keys.refuse("rope.dimension_count",
                concat("must be at most the width of a head, ", head_width, ", but is ", width));
  }
  const double share = static_cast<double>(width) / static_cast<double>(head_width);
  const bool is_short = static_cast<int64_t>(static_cast<double>(head_width) * share) < width;
  return is_short ? std::nextafter(share, 1.0) : share;
}

void read_key(const GgufForm& form, const nn::GgufKey& rule, ArchitectureKeys& keys, json& config) {
  const std::string name = config_key_of(form, rule);
  const bool is_share = rule.option == kRotaryShare;
  if (rule.option == kWindowPattern && keys.list(rule.key) != nullptr) return;  // read_windows() reads it
  json value = keys.value(rule.key);
  if (value.is_null()) {
    if (!rule.optional) keys.refuse(rule.key, "must be there, but is missing");
    // llama.cpp and config.json have different defaults.
    if (is_share) config[name] = 1.0;
    if (rule.option == "rope_theta") config[name] = 10000.0;
    return;
  }
  const auto& field = nn::option_rule(rule.option).field;
  const bool is_flag = std::holds_alternative<bool nn::ModelOptions::*>(field);
  const bool is_number = std::holds_alternative<double nn::ModelOptions::*>(field) && !is_share;
  if (is_flag ? !value.is_boolean() : is_number ? !value.is_number() : !value.is_number_unsigned()) {
    keys.refuse(rule.key,
                concat("must be ", is_flag ? "true or false" : "a number", ", but is ", text_of(value)));
  }
  if (is_share) value = rotary_share(value.get<int64_t>(), config, keys);
  if (config.contains(name) && config[name] != value) {
    keys.refuse(rule.key,
                concat("must be ", text_of(config[name]), " as another key says, but is ", text_of(value)));
  }
  config[name] = value;
}

/// Adds the sizes that llama.cpp takes from other sizes, because defaults of config.json are those of one
/// model.
void add_head_sizes(const nn::Family& ours, json& config) {
  const json heads = config.value("num_attention_heads", json()),
             hidden = config.value("hidden_size", json());
  if (ours.has("num_key_value_heads") && !config.contains("num_key_value_heads")) {
    config["num_key_value_heads"] = heads;
  }
  if (!ours.has("head_dim") || config.contains("head_dim") || heads == 0) return;
  config["head_dim"] = hidden.get<int64_t>() / heads.get<int64_t>();
}

/// Whether each layer has a window, as the numbers of a list (llama.cpp's converter writes it for OLMo 3 and
/// EXAONE 4, though llama.cpp itself reads only a pattern) or as a pattern says.
void read_windows(const Reader& file, const GgufForm& form, ArchitectureKeys& keys, json& config) {
  if (config.value("sliding_window", json()) == 0) config.erase("sliding_window");  // none
  const bool has_windows = config.contains("sliding_window");
  if (has_windows) {
    // Llama and Mistral have one architecture, and only Mistral has windows.
    for (const nn::ModelType& type : form.family->types) {
      const bool fits = type.gguf.architecture == form.architecture &&
                        std::ranges::count(type.without_key, "sliding_window") == 0;
      if (fits) config["model_type"] = type.name;
    }
  }
  if (form.window_pattern == 0) return;
  const auto* list = keys.list("attention.sliding_window_pattern");
  const auto layers = config["num_hidden_layers"].get<size_t>();
  const bool is_default = list == nullptr && !config.contains(kWindowPattern) &&
                          (has_windows || std::cmp_equal(layers, form.layers_with_windows));
  const bool has_none = !has_windows && std::ranges::count(form.type->without_key, "sliding_window") > 0;
  if (is_default || has_none) {
    config.erase(kWindowPattern);
    return;
  }
  if (!has_windows) config["sliding_window"] = nullptr;
  if (layers > file.tensors().size()) {
    keys.refuse("block_count", concat("must be at most the number of tensors, ", file.tensors().size(),
                                      ", but is ", layers));
  }
  if (list != nullptr && list->size() != layers) {
    keys.refuse("attention.sliding_window_pattern",
                concat("must have a number for each of the ", layers, " layers, but has ", list->size()));
  }
  const size_t pattern = has_windows && list == nullptr ? config[kWindowPattern].get<size_t>() : 1;
  config.erase(kWindowPattern);
  config["layer_types"] = json::array();
  for (size_t layer = 1; layer <= layers; ++layer) {
    const bool is_full =
        has_windows && list != nullptr ? (*list)[layer - 1] == 0 : pattern > 0 && layer % pattern == 0;
    config["layer_types"].push_back(is_full ? "full_attention" : "sliding_attention");
  }
}

}  // namespace

json described_config(const Reader& file) {
  require_model(file);
  const GgufForm& form = form_of(file);
  const nn::Family& ours = *form.family;
  json config = checkpoint::json_object(form.fixed);
  config["model_type"] = form.type->name;
  config["pad_token_id"] = nullptr;
  ArchitectureKeys keys(file, form);
  for (const nn::GgufKey& rule : form.keys) read_key(form, rule, keys, config);
  add_head_sizes(ours, config);
  read_windows(file, form, keys, config);
  if (ours.has("query_pre_attn_scalar") && config["num_attention_heads"] != 0) {
    config["query_pre_attn_scalar"] = score_scalar(form, config["num_hidden_layers"], config["hidden_size"],
                                                   config["num_attention_heads"], config["head_dim"]);
  }
  keys.value("tensor_data_layout");
  read_scaling(file, form, keys, config);
  if (form.plain_windows && config.contains("sliding_window")) {
    const json theta = config["rope_theta"], local = config.value("rope_local_base_freq", theta);
    json full = config.value("rope_scaling", json{{"rope_type", "default"}});
    full["rope_theta"] = theta;
    config["rope_parameters"] = {{"full_attention", full},
                                 {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", local}}}};
  }
  if (form.plain_windows) config.erase("rope_local_base_freq");
  keys.refuse_unread();
  for (const nn::GgufFlag& flag : form.flags) config[flag.config_key] = file.tensors().contains(flag.tensor);
  if (!config.contains("tie_word_embeddings")) {
    config["tie_word_embeddings"] = !file.tensors().contains("output.weight");
  }
  // Of the model; the metadata may be missing, or count the tokenizer's tokens.
  const auto embedding = file.tensors().find("token_embd.weight");
  if (embedding != file.tensors().end()) {
    config["vocab_size"] = embedding->second.shape.front();
    // The matrices' type; vectors and positions are in f32 in any file.
    checkpoint::set_dtype(config, value_dtype(embedding->second.type));
  }
  config["architectures"] = {checkpoint::causal_model_class(config["model_type"])};
  constexpr std::pair<const char*, const char*> kIds[] = {{"bos_token_id", "bos_token_id"},
                                                          {"eos_token_id", "eos_token_id"},
                                                          {"padding_token_id", "pad_token_id"}};
  for (const auto& [theirs, key] : kIds) {
    if (const auto* id = file.find<uint32_t>(concat("tokenizer.ggml.", theirs))) config[key] = *id;
  }
  return config;
}

}  // namespace fsdp::gguf
