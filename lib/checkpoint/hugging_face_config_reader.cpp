// options_from_hugging_face(): config.json as options, and everything that is refused in it.

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/hugging_face_config.h"
#include "util/enum_names.h"
#include "util/error.h"
#include "util/text.h"

namespace fsdp::checkpoint {
using nlohmann::json;
using util::concat;
using util::ErrorKind;
using util::fail;

namespace {

/// Reads the keys of a config and refuses impossible values.
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

  bool has(const char* key) const { return config_.contains(key) && !config_[key].is_null(); }
  /// null differs from a missing key where the default is not null.
  bool is_null(const char* key) const { return config_.contains(key) && config_[key].is_null(); }
  json value(const char* key) const { return has(key) ? config_[key] : json(); }
  const std::string& where() const { return where_; }

  [[noreturn]] void refuse(const char* key, const std::string& expected) const {
    fail(ErrorKind::kCheckpoint, where_, ": \"", key, "\" must be ", expected, ", but is ",
         value(key).dump(-1, ' ', true, json::error_handler_t::replace));
  }

 private:
  const json& config_;
  const std::string& where_;
};

// The same as in lib/config/model_keys.cpp.
constexpr int64_t kMostVocabulary = 10'000'000, kMostWidth = 1'000'000, kMostLayers = 10'000,
                  kMostHeads = 1024, kMostPositions = 10'000'000;

nn::ModelOptions read_gpt2(const ConfigReader& reader) {
  nn::ModelOptions options;
  options.architecture = "gpt2";
  options.vocab_size = reader.size("vocab_size", kMostVocabulary, 50257);
  options.hidden_size = reader.size("n_embd", kMostWidth, 768);
  options.intermediate_size = reader.size("n_inner", kMostWidth, 4 * options.hidden_size);
  options.num_hidden_layers = reader.size("n_layer", kMostLayers, 12);
  options.num_attention_heads = reader.size("n_head", kMostHeads, 12);
  options.num_key_value_heads = options.num_attention_heads;
  options.max_position_embeddings = reader.size("n_positions", kMostPositions, 1024);
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

/// Scaling of the rotary positions. `found`: its object, or null.
void read_rotary(const ConfigReader& all, const char* key, const json& found, nn::ModelOptions& options) {
  if (found.is_null()) return;
  if (!found.is_object()) all.refuse(key, "null or an object");
  const std::string where = concat("\"", key, "\" of ", all.where());
  const ConfigReader reader(found, where);
  options.rope_theta = reader.positive("rope_theta", options.rope_theta);
  reader.require("partial_rotary_factor", 1);
  // "type" is what older releases wrote.
  const char* name = reader.has("rope_type") ? "rope_type" : "type";
  if (!reader.has(name)) return;
  const json& type = found[name];
  if (type == "default") return;
  if (type != "linear" && type != "llama3") {
    reader.refuse(name, "\"default\", \"linear\" or \"llama3\", the only ones supported");
  }
  options.rope_type = type.get<std::string>();
  options.rope_factor = reader.positive("factor", 0);
  if (options.rope_type == nn::RopeType::kLinear) return;
  options.rope_low_freq_factor = reader.positive("low_freq_factor", 0);
  options.rope_high_freq_factor = reader.positive("high_freq_factor", 0);
  options.rope_original_length = reader.size("original_max_position_embeddings", kMostPositions);
  if (!(options.rope_low_freq_factor < options.rope_high_freq_factor)) {
    reader.refuse("low_freq_factor", "less than \"high_freq_factor\"");
  }
}

nn::ModelOptions read_llama(const ConfigReader& reader, const std::string& type) {
  const bool mistral = type == "mistral", qwen2 = type == "qwen2";
  nn::ModelOptions options;
  options.architecture = "llama";
  options.vocab_size = reader.size("vocab_size", kMostVocabulary, qwen2 ? 151936 : 32000);
  options.hidden_size = reader.size("hidden_size", kMostWidth, 4096);
  options.intermediate_size = reader.size("intermediate_size", kMostWidth,
                                          mistral ? 14336
                                          : qwen2 ? 22016
                                                  : 11008);
  options.num_hidden_layers = reader.size("num_hidden_layers", kMostLayers, 32);
  options.num_attention_heads = reader.size("num_attention_heads", kMostHeads, 32);
  options.num_key_value_heads = reader.size("num_key_value_heads", kMostHeads,
                                            mistral ? 8
                                            : qwen2 ? 32
                                                    : options.num_attention_heads);
  options.max_position_embeddings = reader.size("max_position_embeddings", kMostPositions,
                                                mistral ? 131072
                                                : qwen2 ? 32768
                                                        : 2048);
  options.rms_norm_eps = reader.positive("rms_norm_eps", 1e-6);
  options.rope_theta = reader.positive("rope_theta", 10000.0);
  options.attention_dropout = reader.share("attention_dropout", 0);
  options.tie_word_embeddings = reader.flag("tie_word_embeddings", false);
  options.qkv_bias = qwen2;
  if (type == "llama") {
    options.attention_bias = reader.flag("attention_bias", false);
    options.mlp_bias = reader.flag("mlp_bias", false);
  }
  // Mistral's default is a window; Qwen2 has one only where it says so.
  if (mistral) {
    options.sliding_window =
        reader.is_null("sliding_window") ? 0 : reader.size("sliding_window", kMostPositions, 4096);
  }
  if (qwen2) reader.require("use_sliding_window", false);
  if (reader.has("head_dim")) {
    const int64_t width = reader.size("head_dim", kMostWidth);
    if (width * options.num_attention_heads != options.hidden_size) options.head_dim = width;
  } else if (options.hidden_size % options.num_attention_heads != 0) {
    reader.refuse("num_attention_heads", "a divisor of \"hidden_size\"");
  }
  options.hidden_act = reader.choice("hidden_act", nn::Activation::kSilu);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    read_rotary(reader, key, reader.value(key), options);
  }
  return options;
}

/// The value with which a key has no effect.
enum class Neutral { kOne, kOff, kOffOrOne };

struct Trait {
  const char* key;
  Neutral neutral;
  const char* meaning;
};

constexpr Trait kTraits[] = {
    {"partial_rotary_factor", Neutral::kOne, "rotary positions for a part of each head"},
    {"rotary_pct", Neutral::kOne, "rotary positions for a part of each head"},
    {"embedding_multiplier", Neutral::kOne, "scaled embeddings"},
    {"residual_multiplier", Neutral::kOne, "scaled residuals"},
    {"attention_multiplier", Neutral::kOff, "a custom scale of attention"},
    {"query_pre_attn_scalar", Neutral::kOff, "a custom scale of attention"},
    {"logits_scaling", Neutral::kOne, "scaled logits"},
    {"logit_scale", Neutral::kOne, "scaled logits"},
    {"final_logit_softcapping", Neutral::kOff, "a soft cap of logits"},
    {"attn_logit_softcapping", Neutral::kOff, "a soft cap of attention"},
    {"use_qk_norm", Neutral::kOff, "norms of queries and keys"},
    {"qk_norm", Neutral::kOff, "norms of queries and keys"},
    {"qk_layernorm", Neutral::kOff, "norms of queries and keys"},
    {"use_parallel_residual", Neutral::kOff, "parallel attention and feed-forward"},
    {"parallel_attn", Neutral::kOff, "parallel attention and feed-forward"},
    {"attention_chunk_size", Neutral::kOff, "attention in chunks"},
    {"is_encoder_decoder", Neutral::kOff, "an encoder"},
    {"num_local_experts", Neutral::kOffOrOne, "experts"},
    {"num_experts", Neutral::kOffOrOne, "experts"},
    {"n_routed_experts", Neutral::kOffOrOne, "experts"},
};

bool is_neutral(const json& value, Neutral neutral) {
  return value.is_null() || (neutral != Neutral::kOff && value == 1) ||
         (neutral != Neutral::kOne && (value == false || value == 0));
}

/// `list` has an entry for each layer.
bool all_are(const json& list, const std::vector<json>& allowed) {
  return std::all_of(list.begin(), list.end(), [&](const json& entry) {
    return std::find(allowed.begin(), allowed.end(), entry) != allowed.end();
  });
}

/// Throws one error that lists all unsupported traits of the config.
void refuse_unsupported_traits(const json& config, const std::string& where) {
  std::vector<std::string> found;
  const auto add = [&](const char* key, const char* meaning) {
    std::string value = config[key].dump(-1, ' ', true, json::error_handler_t::replace);
    constexpr size_t kLongest = 60;
    if (value.size() > kLongest) value = value.substr(0, kLongest) + "...";
    found.push_back(concat("\"", key, "\": ", value, " (", meaning, ")"));
  };
  for (const Trait& trait : kTraits) {
    if (config.contains(trait.key) && !is_neutral(config[trait.key], trait.neutral)) {
      add(trait.key, trait.meaning);
    }
  }
  // 1: the layer has rotary positions.
  if (config.contains("no_rope_layers") && !all_are(config["no_rope_layers"], {1, true})) {
    add("no_rope_layers", "layers without rotary positions");
  }
  // In Mistral, all layers have the window of "sliding_window" or none.
  std::vector<json> layer_types = {"full_attention"};
  if (config.value("model_type", json()) == "mistral") layer_types = {"full_attention", "sliding_attention"};
  if (config.contains("layer_types") && !all_are(config["layer_types"], layer_types)) {
    add("layer_types", "layers with other kinds of attention");
  }
  if (found.empty()) return;
  fail(ErrorKind::kCheckpoint, where, ": this version cannot compute ", util::join(found, ", "),
       "; use a program that supports ", found.size() > 1 ? "these" : "it");
}

/// How models of an unsupported "model_type" differ from ours; "" for unknown types.
std::string unsupported_type(const std::string& model_type) {
  constexpr const char* kExperts = "it has experts";
  constexpr const char* kParallel = "it has parallel attention and feed-forward";
  constexpr std::pair<std::string_view, const char*> kTypes[] = {
      {"qwen3", "it has norms of queries and keys"},
      {"qwen3_moe", "it has norms of queries and keys, and experts"},
      {"olmo2", "it has norms of queries and keys, and norms after attention and feed-forward"},
      {"olmo3", "it has norms of queries and keys, and norms after attention and feed-forward"},
      {"olmo", "it has norms without weights"},
      {"granite", "it has multipliers of embeddings, attention, residuals and logits"},
      {"granitemoe", "it has multipliers of embeddings, attention, residuals and logits, and experts"},
      {"gemma", "it scales embeddings and its norms add one to their weights"},
      {"gemma2", "it scales embeddings, soft-caps logits, and has four norms per block"},
      {"gemma3", "it scales embeddings, and has norms of queries and keys and four norms per block"},
      {"gemma3_text", "it scales embeddings, and has norms of queries and keys and four norms per block"},
      {"stablelm", "it has layer norms, and rotary positions for a part of each head"},
      {"smollm3", "it has layers without rotary positions"},
      {"phi", "it has rotary positions for a part of each head, and parallel blocks"},
      {"phi3", "it stores queries, keys and values as one weight"},
      {"gpt_neox", "it has parallel blocks, and rotary positions for a part of each head"},
      {"gptj", kParallel},
      {"falcon", kParallel},
      {"cohere", kParallel},
      {"cohere2", kParallel},
      {"starcoder2", "it has layer norms with rotary positions"},
      {"mixtral", kExperts},
      {"qwen2_moe", kExperts},
      {"deepseek_v2", "it has experts and latent attention"},
      {"deepseek_v3", "it has experts and latent attention"},
      {"gpt_oss", "it has experts and attention sinks"},
      {"llama4_text", "it has experts, and layers without rotary positions"},
      {"llama4", "it has experts, and layers without rotary positions"},
      {"opt", "it has learned positions with an offset, and ReLU"},
      {"gpt_neo", "it has layers of local attention"},
      {"bloom", "it has ALiBi instead of rotary positions"},
      {"mpt", "it has ALiBi instead of rotary positions"}};
  for (const auto& [type, what] : kTypes) {
    if (type == model_type) return what;
  }
  return "";
}

}  // namespace

nn::ModelOptions options_from_hugging_face(const json& config, const std::string& where) {
  ConfigReader reader(config, where);
  if (reader.has("quantization_config")) {
    fail(ErrorKind::kCheckpoint, where,
         " describes quantized weights, but only floating-point weights are supported");
  }
  nn::ModelOptions options;
  if (reader.has("model_type") && config["model_type"] == "gpt2") {
    options = read_gpt2(reader);
  } else if (const json type = reader.value("model_type");
             type == "llama" || type == "mistral" || type == "qwen2") {
    options = read_llama(reader, type.get<std::string>());
  } else {
    const std::string why = type.is_string() ? unsupported_type(type.get<std::string>()) : "";
    fail(ErrorKind::kCheckpoint, where,
         ": \"model_type\" must be \"gpt2\", \"llama\", \"mistral\" or \"qwen2\", but is ",
         type.dump(-1, ' ', true, json::error_handler_t::replace),
         why.empty() ? "" : ", whose models differ: ", why,
         why.empty() ? "" : ", which this version cannot compute");
  }
  refuse_unsupported_traits(config, where);
  options.initializer_range = reader.number("initializer_range", 0.02);
  if (!(options.initializer_range >= 0)) reader.refuse("initializer_range", "a number of at least 0");
  return options;
}

}  // namespace fsdp::checkpoint
