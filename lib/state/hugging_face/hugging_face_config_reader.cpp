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
#include "state/hugging_face/hugging_face_config.h"
#include "state/hugging_face/hugging_face_unsupported.h"

namespace fsdp::checkpoint {
using nlohmann::json;
using util::concat;
using util::ErrorKind;
using util::fail;

namespace {

/// Reads the keys of a config, refuses impossible values, and tells the keys that nothing has read.
class ConfigReader {
 public:
  ConfigReader(const json& config, const std::string& where) : config_(config), where_(where) {
    if (!config_.is_object()) fail(ErrorKind::kCheckpoint, where_, " is not a JSON object");
  }

  /// A whole number from 1 to `most`, the limit of the same key in [model], so that no number can ask for
  /// more names or elements than can exist. Without a default the key is required. null counts as missing.
  int64_t size(const char* key, int64_t most, int64_t otherwise = 0) const {
    if (!has(key) && otherwise > 0) return otherwise;
    if (!has(key)) fail(ErrorKind::kCheckpoint, where_, " lacks the key \"", key, "\"");
    const json& value = config_[key];
    if (!value.is_number_integer() || value < 1 || value > most) {
      refuse(key, concat("a whole number from 1 to ", most));
    }
    return value.get<int64_t>();
  }

  double number(const char* key, double otherwise) const {
    if (!has(key)) return otherwise;
    if (!config_[key].is_number()) refuse(key, "a number");
    return config_[key].get<double>();
  }

  /// Above 0 also in single precision, in which the model computes.
  double positive(const char* key, double otherwise) const {
    const double value = number(key, otherwise);
    if (!(value >= std::numeric_limits<float>::min() && value <= std::numeric_limits<float>::max())) {
      refuse(key, "a number above 0 that fits in single precision");
    }
    return value;
  }

  /// From 0 to below 1.
  double share(const char* key, double otherwise) const {
    const double value = number(key, otherwise);
    if (!(value >= 0 && value < 1)) refuse(key, "a number from 0 to below 1");
    return value;
  }

  bool flag(const char* key, bool otherwise) const {
    if (!has(key)) return otherwise;
    if (!config_[key].is_boolean()) refuse(key, "true or false");
    return config_[key].get<bool>();
  }

  /// Throws unless the key is missing or has the only supported value.
  void require(const char* key, const json& expected) const {
    if (has(key) && config_[key] != expected)
      refuse(key, concat(expected.dump(), ", the only one supported"));
  }

  template <util::NamedEnum E>
  E choice(const char* key, E otherwise) const {
    if (!has(key)) return otherwise;
    const auto known =
        config_[key].is_string() ? util::parse_enum<E>(config_[key].get<std::string>()) : std::nullopt;
    if (!known) refuse(key, concat("one of ", util::join(util::names_of_enum<E>(), ", ")));
    return *known;
  }

  bool has(const char* key) const {
    read_.insert(key);
    return config_.contains(key) && !config_[key].is_null();
  }
  /// null differs from a missing key where the default is not null.
  bool is_null(const char* key) const {
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
  json value(const char* key) const { return has(key) ? config_[key] : json(); }
  const std::string& where() const { return where_; }

  [[noreturn]] void refuse(const char* key, const std::string& expected) const {
    fail(ErrorKind::kCheckpoint, where_, ": \"", key, "\" must be ", expected, ", but is ",
         value(key).dump(-1, ' ', true, json::error_handler_t::replace));
  }

 private:
  const json& config_;
  const std::string& where_;
  mutable std::set<std::string, std::less<>> read_;
};

// The same as in lib/setup/config/model_keys.cpp.
constexpr int64_t kMostVocabulary = 10'000'000, kMostWidth = 1'000'000, kMostLayers = 10'000,
                  kMostHeads = 1024, kMostPositions = 10'000'000, kMostExperts = 10'000;
/// Experts of all layers.
constexpr int64_t kMostExpertsOfAll = 200'000;

nn::ModelOptions read_gpt2(const ConfigReader& reader) {
  nn::ModelOptions options;
  options.architecture = "gpt2";
  options.vocab_size = reader.size("vocab_size", kMostVocabulary, 50257);
  // transformers also takes the names that other models have for these.
  const auto size = [&reader](const char* key, const char* other, int64_t most, int64_t otherwise) {
    return reader.size(key, most, reader.size(other, most, otherwise));
  };
  options.hidden_size = size("n_embd", "hidden_size", kMostWidth, 768);
  options.intermediate_size = reader.size("n_inner", kMostWidth, 4 * options.hidden_size);
  options.num_hidden_layers = size("n_layer", "num_hidden_layers", kMostLayers, 12);
  options.num_attention_heads = size("n_head", "num_attention_heads", kMostHeads, 12);
  options.num_key_value_heads = options.num_attention_heads;
  options.max_position_embeddings = size("n_positions", "max_position_embeddings", kMostPositions, 1024);
  options.layer_norm_epsilon = reader.positive("layer_norm_epsilon", 1e-5);
  options.attention_dropout = reader.share("attn_pdrop", 0.1);
  options.embedding_dropout = reader.share("embd_pdrop", 0.1);
  options.hidden_dropout = reader.share("resid_pdrop", 0.1);
  options.tie_word_embeddings = reader.flag("tie_word_embeddings", true);
  reader.require("activation_function", "gelu_new");
  reader.require("scale_attn_weights", true);
  reader.require("scale_attn_by_inverse_layer_idx", false);
  reader.require("add_cross_attention", false);
  return options;
}

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
    options.rope_original_length = reader.size("original_max_position_embeddings", kMostPositions);
    if (!(options.rope_low_freq_factor < options.rope_high_freq_factor)) {
      reader.refuse("low_freq_factor", "less than \"high_freq_factor\"");
    }
  }
  refuse_unread_rotary(reader);
}

/// transformers' defaults, which are those of one size of the family.
nn::ModelOptions defaults_of(const std::string& type) {
  struct Sizes {
    int64_t vocabulary, hidden, inner, layers, heads, key_value_heads, positions;  // 0: as many as heads
  };
  const auto with = [](const char* architecture, const Sizes& sizes) {
    nn::ModelOptions options;
    options.architecture = architecture;
    options.vocab_size = sizes.vocabulary;
    options.hidden_size = sizes.hidden;
    options.intermediate_size = sizes.inner;
    options.num_hidden_layers = sizes.layers;
    options.num_attention_heads = sizes.heads;
    options.num_key_value_heads = sizes.key_value_heads;
    options.max_position_embeddings = sizes.positions;
    if (nn::family_of(options).has("rms_norm_eps")) options.rms_norm_eps = 1e-6;
    return options;
  };
  if (type == "llama") return with("llama", {32000, 4096, 11008, 32, 32, 0, 2048});
  if (type == "mistral") {
    nn::ModelOptions options = with("llama", {32000, 4096, 14336, 32, 32, 8, 131072});
    options.sliding_window = 4096;
    return options;
  }
  if (type == "qwen2") {
    nn::ModelOptions options = with("llama", {151936, 4096, 22016, 32, 32, 32, 32768});
    options.qkv_bias = true;
    return options;
  }
  if (type == "qwen3") {
    nn::ModelOptions options = with("qwen3", {151936, 4096, 22016, 32, 32, 32, 32768});
    options.head_dim = 128;
    return options;
  }
  if (type == "olmo2") {
    nn::ModelOptions options = with("olmo2", {50304, 4096, 11008, 32, 32, 0, 2048});
    options.rms_norm_eps = 1e-5;
    return options;
  }
  if (type == "smollm3") {
    nn::ModelOptions options = with("smollm3", {128256, 2048, 11008, 36, 16, 4, 32768});
    options.rope_theta = 2e6;
    options.no_rope_layer_interval = 4;
    options.tie_word_embeddings = true;
    return options;
  }
  if (type == "phi3") {
    nn::ModelOptions options = with("phi3", {32064, 3072, 8192, 32, 32, 0, 4096});
    options.rms_norm_eps = 1e-5;
    return options;
  }
  if (type == "gpt_neox") {
    nn::ModelOptions options = with("gpt_neox", {50432, 6144, 24576, 44, 64, 0, 2048});
    options.hidden_act = nn::Activation::kGelu;
    options.attention_bias = true;
    options.partial_rotary_factor = 0.25;
    options.use_parallel_residual = true;
    return options;
  }
  if (type == "mixtral") {
    nn::ModelOptions options = with("mixtral", {32000, 4096, 14336, 32, 32, 8, 131072});
    options.rms_norm_eps = 1e-5;
    options.rope_theta = 1e6;
    options.num_experts = 8;
    return options;
  }
  if (type == "qwen3_moe") {
    nn::ModelOptions options = with("qwen3_moe", {151936, 2048, 6144, 24, 32, 4, 32768});
    options.num_experts = 128;
    options.num_experts_per_tok = 8;
    options.moe_intermediate_size = 768;
    return options;
  }
  const bool gemma2 = type == "gemma2";
  nn::ModelOptions options = gemma2 ? with("gemma2", {256000, 2304, 9216, 26, 8, 4, 8192})
                                    : with("gemma3_text", {262208, 2304, 9216, 26, 8, 4, 131072});
  options.head_dim = 256;
  options.hidden_act = nn::Activation::kGeluTanh;
  options.tie_word_embeddings = true;
  options.query_pre_attn_scalar = 256;
  options.sliding_window = 4096;
  options.sliding_window_pattern = gemma2 ? 2 : 6;
  options.attn_logit_softcapping = gemma2 ? 50 : 0;
  options.final_logit_softcapping = gemma2 ? 30 : 0;
  options.rope_theta = gemma2 ? 1e4 : 1e6;
  options.rope_local_base_freq = gemma2 ? 0 : 1e4;
  return options;
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

void read_windows(const ConfigReader& reader, const std::string& type, nn::ModelOptions& options) {
  const nn::Family& family = nn::family_of(options);
  if (type.starts_with("qwen") || type == "smollm3") reader.require("use_sliding_window", false);
  if (type == "llama" || !family.has("sliding_window")) return;
  if (type == "qwen2") return;
  if (reader.has("sliding_window")) {
    options.sliding_window = reader.size("sliding_window", kMostPositions);
  } else if (reader.is_null("sliding_window")) {
    options.sliding_window = 0;
  }
  if (!family.has("sliding_window_pattern")) return;
  reader.require("use_bidirectional_attention", false);
  for (const char* key : {"_sliding_window_pattern", "sliding_window_pattern"}) {
    options.sliding_window_pattern = reader.size(key, kMostLayers, options.sliding_window_pattern);
  }
  if (reader.has("layer_types")) {
    options.sliding_window_pattern =
        read_interval(reader, "layer_types", options, {"full_attention"}, {"sliding_attention"});
  }
  // Without an interval, which then would be one of windows that no layer has.
  if (options.sliding_window == 0 || options.sliding_window_pattern == 1) {
    options.sliding_window = options.sliding_window_pattern = 0;
  }
}

void read_experts(const ConfigReader& reader, nn::ModelOptions& options) {
  const nn::Family& family = nn::family_of(options);
  if (!family.has_experts()) return;
  // transformers takes both names for each of the families.
  const char* used = "num_experts";
  for (const char* key : {"num_experts", "num_local_experts"}) {
    if (reader.has(key)) used = key;
    options.num_experts = reader.size(key, kMostExperts, options.num_experts);
  }
  if (options.num_experts * options.num_hidden_layers > kMostExpertsOfAll) {
    reader.refuse(used,
                  concat("at most ", kMostExpertsOfAll, " in all ", options.num_hidden_layers, " layers"));
  }
  options.num_experts_per_tok = reader.size("num_experts_per_tok", kMostExperts, options.num_experts_per_tok);
  if (options.num_experts_per_tok > options.num_experts) {
    reader.refuse("num_experts_per_tok", concat("at most \"", used, "\", ", options.num_experts));
  }
  options.router_aux_loss_coef = reader.number("router_aux_loss_coef", options.router_aux_loss_coef);
  if (!(options.router_aux_loss_coef >= 0)) reader.refuse("router_aux_loss_coef", "a number of at least 0");
  if (family.has("moe_intermediate_size")) {
    options.moe_intermediate_size =
        reader.size("moe_intermediate_size", kMostWidth, options.moe_intermediate_size);
  }
  if (family.has("norm_topk_prob")) options.norm_topk_prob = reader.flag("norm_topk_prob", false);
  if (!family.has("decoder_sparse_step")) return;
  options.decoder_sparse_step = reader.size("decoder_sparse_step", kMostLayers, options.decoder_sparse_step);
  reader.require("mlp_only_layers", json::array());
}

void read_all_rotary(const ConfigReader& reader, const std::string& type, nn::ModelOptions& options) {
  const bool neox = type == "gpt_neox";
  options.rope_theta = reader.positive(neox ? "rotary_emb_base" : "rope_theta", options.rope_theta);
  if (nn::family_of(options).has("partial_rotary_factor")) {
    options.partial_rotary_factor =
        reader.positive(neox ? "rotary_pct" : "partial_rotary_factor", options.partial_rotary_factor);
  }
  const json scaling = reader.value("rope_scaling"), parameters = reader.value("rope_parameters");
  read_rotary(reader, "rope_scaling", scaling, options);
  if (type != "gemma3_text") {
    if (scaling.is_object() && !scaling.empty() && parameters.is_object() && scaling != parameters) {
      reader.refuse("rope_parameters", "the same as \"rope_scaling\"");
    }
    return read_rotary(reader, "rope_parameters", parameters, options);
  }
  options.rope_local_base_freq = reader.positive("rope_local_base_freq", options.rope_local_base_freq);
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

/// All but gpt2.
nn::ModelOptions read_decoder(const ConfigReader& reader, const std::string& type) {
  nn::ModelOptions options = defaults_of(type);
  const nn::Family& family = nn::family_of(options);
  options.vocab_size = reader.size("vocab_size", kMostVocabulary, options.vocab_size);
  options.hidden_size = reader.size("hidden_size", kMostWidth, options.hidden_size);
  options.intermediate_size = reader.size("intermediate_size", kMostWidth, options.intermediate_size);
  options.num_hidden_layers = reader.size("num_hidden_layers", kMostLayers, options.num_hidden_layers);
  options.num_attention_heads = reader.size("num_attention_heads", kMostHeads, options.num_attention_heads);
  if (options.num_key_value_heads == 0) options.num_key_value_heads = options.num_attention_heads;
  if (family.has("num_key_value_heads")) {
    options.num_key_value_heads = reader.size("num_key_value_heads", kMostHeads, options.num_key_value_heads);
  }
  options.max_position_embeddings =
      reader.size("max_position_embeddings", kMostPositions, options.max_position_embeddings);
  if (family.has("rms_norm_eps")) {
    options.rms_norm_eps = reader.positive("rms_norm_eps", options.rms_norm_eps);
  } else {
    options.layer_norm_epsilon = reader.positive("layer_norm_eps", options.layer_norm_epsilon);
  }
  options.attention_dropout = reader.share("attention_dropout", 0);
  if (type == "phi3") options.hidden_dropout = reader.share("resid_pdrop", 0);
  if (type == "gpt_neox") {
    options.hidden_dropout = options.embedding_dropout = reader.share("hidden_dropout", 0);
    options.use_parallel_residual = reader.flag("use_parallel_residual", options.use_parallel_residual);
  }
  options.tie_word_embeddings = reader.flag("tie_word_embeddings", options.tie_word_embeddings);
  if (type != "mistral" && type != "qwen2") {
    if (family.has("attention_bias")) {
      options.attention_bias = reader.flag("attention_bias", options.attention_bias);
    }
    if (family.has("mlp_bias")) options.mlp_bias = reader.flag("mlp_bias", false);
  }
  if (family.has("head_dim") && (reader.has("head_dim") || options.head_dim > 0)) {
    options.head_dim = reader.size("head_dim", kMostWidth, options.head_dim);
    if (options.head_dim * options.num_attention_heads == options.hidden_size) options.head_dim = 0;
  } else if (options.hidden_size % options.num_attention_heads != 0) {
    reader.refuse("num_attention_heads", "a divisor of \"hidden_size\"");
  } else {
    reader.require("head_dim", options.hidden_size / options.num_attention_heads);
  }
  const bool gemma = family.has("query_pre_attn_scalar");
  options.hidden_act = reader.choice(gemma ? "hidden_activation" : "hidden_act", options.hidden_act);
  if (gemma) {
    const int64_t scalar = reader.size("query_pre_attn_scalar", kMostWidth, options.query_pre_attn_scalar);
    options.query_pre_attn_scalar = scalar == nn::head_width(options) ? 0 : scalar;
    const auto cap = [&](const char* key, double otherwise) {
      return reader.is_null(key) ? 0 : reader.has(key) || otherwise > 0 ? reader.positive(key, otherwise) : 0;
    };
    options.final_logit_softcapping = cap("final_logit_softcapping", options.final_logit_softcapping);
    if (family.has("attn_logit_softcapping")) {
      options.attn_logit_softcapping = cap("attn_logit_softcapping", options.attn_logit_softcapping);
    }
  }
  if (family.has("no_rope_layer_interval")) {
    options.no_rope_layer_interval =
        reader.has("no_rope_layers")
            ? read_interval(reader, "no_rope_layers", options, {0, false}, {1, true})
            : reader.size("no_rope_layer_interval", kMostLayers, options.no_rope_layer_interval);
  }
  read_experts(reader, options);
  read_windows(reader, type, options);
  read_all_rotary(reader, type, options);
  return options;
}

}  // namespace

nn::ModelOptions options_from_hugging_face(const json& config, const std::string& where) {
  ConfigReader reader(config, where);
  if (reader.has("quantization_config")) {
    fail(ErrorKind::kCheckpoint, where,
         " describes quantized weights, but only floating-point weights are supported");
  }
  const json type = reader.value("model_type");
  std::vector<std::string> known;
  bool is_known = false;
  for (const HuggingFaceType& each : hugging_face_types()) {
    known.push_back(concat("\"", each.model_type, "\""));
    is_known = is_known || type == each.model_type;
  }
  if (!is_known) {
    const std::string why = type.is_string() ? unsupported_type(type.get<std::string>()) : "";
    fail(ErrorKind::kCheckpoint, where, ": \"model_type\" must be one of ", util::join(known, ", "),
         ", but is ", type.dump(-1, ' ', true, json::error_handler_t::replace),
         why.empty() ? "" : ", whose models differ: ", why,
         why.empty() ? "" : ", which this version cannot compute");
  }
  nn::ModelOptions options =
      type == "gpt2" ? read_gpt2(reader) : read_decoder(reader, type.get<std::string>());
  refuse_unsupported_traits(config, nn::family_of(options), where);
  options.initializer_range = reader.number("initializer_range", 0.02);
  if (!(options.initializer_range >= 0)) reader.refuse("initializer_range", "a number of at least 0");
  for (const std::string& key : keys_without_effect(config)) reader.has(key.c_str());
  if (const std::vector<std::string> unread = reader.unread(); !unread.empty()) {
    report_unknown_keys(unread, reader.has("auto_map"), where);
  }
  return options;
}

}  // namespace fsdp::checkpoint
